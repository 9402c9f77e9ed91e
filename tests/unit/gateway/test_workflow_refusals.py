"""Refused commands as problem documents."""

import pytest

from headwater.gateway.api.problems import CODES
from headwater.gateway.api.workflows.command_outcomes import refusal
from headwater.schemas.failures import INTERNAL, REFUSALS
from tests.unit.gateway.workflow_fakes import reply


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_is_a_problem(code: str) -> None:
    problem = refusal(reply(code=code, message="why"))
    assert (problem.code, problem.detail) == (code, "why")
    # All but the one that no caller can do anything about.
    assert CODES[code][0] == 500 if code == INTERNAL else 400 <= CODES[code][0] < 500
    assert problem.headers == {"headwater-position": "workflow-history/1@7"}


def test_a_code_of_a_newer_owner_is_a_conflict() -> None:
    problem = refusal(reply(code="NEW_CODE", message="why"))
    assert (problem.code, problem.detail) == ("COMMAND_REFUSED", "NEW_CODE: why")
