"""Errors say what to do with them."""

import pickle

import pytest

from headwater.schemas.errors import Disposition, HeadwaterError


def test_every_error_has_a_disposition_and_a_code_of_its_own():
    kinds = HeadwaterError.__subclasses__()
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(isinstance(kind.disposition, Disposition) for kind in kinds)


@pytest.mark.parametrize("kind", HeadwaterError.__subclasses__(), ids=lambda kind: kind.code)
def test_an_error_survives_pickling(kind: type[HeadwaterError]):
    result = pickle.loads(pickle.dumps(kind("expected this, found that")))  # noqa: S301, our own
    assert type(result) is kind
    assert result.message == str(result) == "expected this, found that"


def test_the_base_is_not_raised_itself():
    with pytest.raises(TypeError, match="subclasses"):
        HeadwaterError("something")
