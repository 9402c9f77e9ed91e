"""Headers that name the writer of a record, whatever somebody else wrote in them."""

import pytest

from headwater.schemas.epochs import EPOCH, UNSEEN, epoch_of, unseen_of


@pytest.mark.parametrize(
    ("value", "epoch"), [(b"12", 12), (b"", None), (b"-1", None), (b"twelve", None), (None, None)]
)
def test_an_epoch_is_a_number_or_none(value: bytes | None, epoch: int | None):
    assert epoch_of([("traceparent", None), (EPOCH, value)]) == epoch


@pytest.mark.parametrize(
    ("value", "unseen"), [(b"7@-1", (7, -1)), (b"7", None), (b"@", None), (None, None)]
)
def test_what_is_unseen_is_two_numbers_or_none(value: bytes | None, unseen: tuple[int, int] | None):
    assert unseen_of([(UNSEEN, value)]) == unseen
