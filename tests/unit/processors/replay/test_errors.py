"""The errors of authors survive being pickled, as when a process pool passes them on."""

import pickle

import pytest

from headwater.processors.code import errors
from headwater.schemas.history import Failure

FAILURE = Failure("LookupError", "no such page", '"trace"')

RAISED = [
    errors.NonRetryableError("no", "OutOfStock"),
    errors.RollbackError("back"),
    errors.EventTimeoutError("late"),
    errors.StepFailedError("fetch", 3, FAILURE),
    errors.UniqueConstraintError("save", 1, FAILURE),
    errors.JoinError("two failed", {"a": FAILURE, "b": FAILURE}),
    errors.RaceError("all failed", {"a": FAILURE}),
    errors.ChildWorkflowError("child"),
    errors.HistoryDivergedError("pages/~3/fetch", "do", "sleep", "the code changed"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_survives_being_pickled(error: Exception):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301, our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_of_authors_has_a_line_here_or_takes_a_message_alone():
    named = {type(error) for error in RAISED}
    public = [var for name, var in vars(errors).items() if not name.startswith("_")]
    for error in public:
        if isinstance(error, type) and issubclass(error, Exception) and error not in named:
            assert error.__init__ is Exception.__init__, error
