"""What is sent again, and when: tables."""

import pytest

from headwater.gateway.client.requests import (
    Failure,
    Policy,
    Repeat,
    delay_s,
    failure_of,
    may_repeat,
)

POLICY = Policy(retries=5, base_s=1.0, longest_s=6.0)


@pytest.mark.parametrize(
    ("status", "code", "failure"),
    [
        (429, "", Failure.NOT_TAKEN),
        (408, "body_timeout", Failure.NOT_TAKEN),
        (503, "overloaded", Failure.NOT_TAKEN),
        (503, "audit_unavailable", Failure.NOT_TAKEN),
        (500, "result_not_recorded", Failure.UNKNOWN),
        (503, "not_yet_readable", Failure.NOT_TAKEN),
        (503, "broker_unavailable", Failure.UNKNOWN),
        (503, "outcome_unknown", Failure.UNKNOWN),
        (503, "position_not_reached", Failure.UNKNOWN),
        (502, "", Failure.UNKNOWN),
        (504, "", Failure.UNKNOWN),
        (500, "internal_error", Failure.FINAL),
        (400, "invalid_body", Failure.FINAL),
        (409, "INSTANCE_TERMINAL", Failure.FINAL),
    ],
)
def test_what_an_answer_says(status: int, code: str, failure: Failure):
    assert failure_of(status, code) is failure


@pytest.mark.parametrize("repeat", Repeat)
@pytest.mark.parametrize("failure", Failure)
def test_only_an_unsafe_write_minds_that_it_may_have_been_taken(repeat: Repeat, failure: Failure):
    expected = failure is Failure.NOT_TAKEN or (
        failure is Failure.UNKNOWN and repeat is not Repeat.UNSAFE
    )
    assert may_repeat(repeat, failure) is expected


@pytest.mark.parametrize(
    ("repeats", "drawn", "wanted", "expected"),
    [
        (0, 0.0, None, 0.0),
        (0, 0.5, None, 0.5),
        (1, 0.5, None, 1.0),
        (2, 0.5, None, 2.0),
        (3, 0.5, None, 3.0),
        (4, 0.5, None, 3.0),
        (5, 0.5, None, None),
        (0, 0.5, 0.1, 0.5),
        (0, 0.5, 5.0, 5.0),
        (0, 0.5, 60.0, 60.0),
        (0, 0.5, 61.0, None),
    ],
)
def test_delays_grow_and_the_server_may_ask_for_longer_ones(
    repeats: int, drawn: float, wanted: float | None, expected: float | None
):
    assert delay_s(POLICY, repeats, drawn, wanted) == expected
