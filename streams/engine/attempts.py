"""Requests for attempts that take long, time out, or are lost with their host."""

from headwater.processors.runs.host_messages import AttemptStarted
from headwater.processors.runs.requests import RollbackRaised, StepRaised, StepUnderWay
from headwater.schemas.failures import HOST_LOST, STEP_TIMEOUT
from headwater.schemas.history import Failure


def report_running(started: AttemptStarted) -> StepUnderWay:
    """Return the request that records a long attempt, so that users can see it."""
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
    """Return the failure of an attempt whose host was lost. Any of them may be the cause."""
    failure = Failure(
        HOST_LOST,
        f"{reason} while the step was running. All steps that run in a host fail with it, because "
        "the cause is not known. An async callback must not block: make a blocking one a plain "
        "function, which runs in a thread",
    )
    if started.rollback:
        return RollbackRaised(started.step.key, started.attempt, failure)
    return StepRaised(started.step, started.attempt, failure, started.policy)
