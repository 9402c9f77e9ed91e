"""The errors that authors of workflows raise and see.

None of them is an error of the house: they belong to the author's code. Suspension and eviction are
no errors at all, and derive from BaseException elsewhere, so that `except Exception` lets them by.
"""

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from headwater.schemas.failures import MAX_STEPS_EXCEEDED
from headwater.schemas.history import Failure

#: The usual cause of code that does not fit its history.
CODE_CHANGED: Final = (
    "the workflow's code changed while this run was under way, or it decides by something that "
    "differs on replay; keep old entries with step.removed, or give the changed workflow a new name"
)


class NonRetryableError(Exception):
    """Raised in a step: do not try it again."""

    def __init__(self, message: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.name = name or type(self).__name__

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.name)


class RollbackError(Exception):
    """Raised in a step or a workflow: do not try again, roll back."""


class EventTimeoutError(Exception):
    """No event came before the end of a wait."""


class StepFailedError(Exception):
    """A step has failed for good.

    Shape:  name of the step; attempts made; error with `.name` and `.message` of the last attempt.
    """

    def __init__(self, name: str, attempts: int, error: Failure) -> None:
        times = "attempt" if attempts == 1 else "attempts"
        super().__init__(
            f'step "{name}" failed after {attempts} {times}: {error.name}: {error.message}'
        )
        self.name = name
        self.attempts = attempts
        self.error = error

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.attempts, self.error)


class UniqueConstraintError(StepFailedError):
    """The SQL of a step met a unique constraint; it is not tried again."""


class _BranchesError(Exception):
    def __init__(self, message: str, errors: Mapping[str, Failure]) -> None:
        super().__init__(message)
        self.errors = dict(errors)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.errors)


class JoinError(_BranchesError):
    """Branches of a join failed: `.errors` has `.name` and `.message` by branch."""


class RaceError(_BranchesError):
    """All branches of a race failed: `.errors` has `.name` and `.message` by branch."""


class ChildWorkflowError(Exception):
    """A child workflow failed, was ended or took too long."""


class RollbackCheckpointError(Exception):
    """A step has a rollback and no checkpoint before it."""


class DuplicateStepError(Exception):
    """The same name twice at once in one scope."""


class NotAwaitedError(Exception):
    """The workflow returned while entries that it had begun were still open."""


class NonDeterministicError(Exception):
    """The workflow's own code does what would differ when it is replayed."""


class UnserialisableError(Exception):
    """A value that is not JSON, or too large."""


class TooManyEntriesError(Exception):
    """A run has as many entries as it may have."""

    name = MAX_STEPS_EXCEEDED


class LoopError(Exception):
    """The body of a loop returned neither Continue nor Break."""


class HistoryDivergedError(Exception):
    """The code does not fit what is recorded of its run.

    Shape:  key of the entry; recorded and requested name kinds as `history.steps[i].type` does.
    """

    def __init__(self, key: str, recorded: str, requested: str, cause: str = CODE_CHANGED) -> None:
        super().__init__(
            f"at {key}: recorded {recorded}, requested {requested}; usual cause: {cause}"
        )
        self.key = key
        self.recorded = recorded
        self.requested = requested
        self.cause = cause

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.recorded, self.requested, self.cause)
