"""What is said of attempts that did not end by themselves."""

import pytest

from headwater.processors.runs.decisions import Reached, RetryPolicy, RollbackRaised, StepRaised
from headwater.processors.runs.host_messages import AttemptStarted
from headwater.streams.engine.timer_queue import lost, timed_out

_STEP = Reached("a", "a", 0, 0, 3, 600)
_POLICY = RetryPolicy(2, 1_000, "constant")


def test_an_attempt_that_took_too_long_has_failed():
    assert timed_out(AttemptStarted(1, _STEP, 2, _POLICY)) == StepRaised(
        _STEP, 2, timed_out(AttemptStarted(1, _STEP, 2, _POLICY)).failure, _POLICY
    )
    reported = timed_out(AttemptStarted(1, _STEP, 2, _POLICY)).failure.message
    assert reported == 'expected step "a" to end within 600 ms, found it still running in attempt 2'


def test_a_rollback_handler_that_took_too_long_has_failed():
    raised = timed_out(AttemptStarted(1, _STEP, 2, _POLICY, rollback=True))
    assert raised == RollbackRaised("a", 2, raised.failure)
    assert raised.failure.message == (
        'expected the rollback of step "a" to end within 600 ms, found it still running in '
        "attempt 2"
    )


@pytest.mark.parametrize(("rollback", "kind"), [(False, StepRaised), (True, RollbackRaised)])
def test_an_attempt_that_lost_its_host_is_told_whose_fault_it_may_be(rollback: bool, kind: type):
    raised = lost(
        AttemptStarted(1, _STEP, 2, _POLICY, rollback), "the code host stood still for 10 s"
    )
    assert isinstance(raised, kind)
    assert raised.failure.name == "HostLostError"
    assert raised.failure.message.startswith(
        "the code host stood still for 10 s while the step was running. "
        "All steps that run in a host fail with it"
    )
