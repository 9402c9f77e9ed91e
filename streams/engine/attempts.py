"""Attempts that take long, or did not end by themselves: too long, or their host was lost."""

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.processors.runs.requests import RollbackRaised, StepRaised, StepUnderWay
from headwater.schemas.failures import HOST_LOST, STEP_TIMEOUT
from headwater.schemas.history import Failure


def under_way(started: AttemptStarted) -> StepUnderWay:
    """What is asked for an attempt that takes so long that people may want to see it."""
    return StepUnderWay(started.step, started.attempt)


def timed_out(started: AttemptStarted) -> StepRaised | RollbackRaised:
    """Return the failure of an attempt that took too long."""
    step = started.step
    what = f'the rollback of step "{step.key}"' if started.rollback else f'step "{step.name}"'
    failure = Failure(
        STEP_TIMEOUT,
        f"expected {what} to end within {step.timeout_ms} ms, found it still "
        f"running in attempt {started.attempt}",
    )
    if started.rollback:
        return RollbackRaised(step.key, started.attempt, failure)
    return StepRaised(step, started.attempt, failure, started.policy)


def lost(started: AttemptStarted, reason: str) -> StepRaised | RollbackRaised:
    """The failure of an attempt whose host is gone; which of those in it is why, nobody knows."""
    failure = Failure(
        HOST_LOST,
        f"{reason} while the step was running. That fails every step under way in the host, "
        "whichever was the cause; an async callback must not block: make one that does a plain "
        "function, which runs in a thread",
    )
    if started.rollback:
        return RollbackRaised(started.step.key, started.attempt, failure)
    return StepRaised(started.step, started.attempt, failure, started.policy)
