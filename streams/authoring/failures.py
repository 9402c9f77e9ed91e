"""Exceptions of authors' code as data."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from headwater.processors.replay.errors import (
    NonRetryableError,
    StepFailedError,
    TooManyEntriesError,
)
from headwater.processors.runs.limits import FAILURE_NAME_MAX, bounded
from headwater.schemas.history import Failure
from headwater.streams.authoring.values import decode, encode, sound

#: Characters of a traceback that are kept: the end says where it was.
_TRACE_MAX: Final = 4_000
#: And of each frame or message in it, so that a long message leaves room for the frames.
_TRACE_PART_MAX: Final = 1_000
#: Where the code lies that runs authors' code.
_OURS: Final = str(Path(__file__).parents[1])


def failure_of(error: BaseException) -> Failure:
    """An exception as data; of a failed step, the exception that made it fail.

    Its message is cut where it is too long: several of them may have to fit into one record.
    """
    # Those of ours, too, may be subclasses of an author's that never call `super().__init__`, as
    # that of a dataclass does not: what that would have set is missing.
    if isinstance(error, StepFailedError) and isinstance(
        failure := getattr(error, "error", None), Failure
    ):
        return failure
    name = _read(lambda: _name_of(error), "Exception")
    text = _read(lambda: str(error), "(its text could not be made)")
    trace = _read(lambda: sound("".join(_parts(error))), "(its traceback could not be made)")
    if len(trace) > _TRACE_MAX:
        trace = f"…{trace[-_TRACE_MAX:]}"
    return Failure(
        bounded(sound(name), FAILURE_NAME_MAX), bounded(sound(text)), encode(trace, "a traceback")
    )


def _name_of(error: BaseException) -> str:
    # Not of any error that has a name: of an AttributeError it is that of the attribute.
    if isinstance(error, NonRetryableError | TooManyEntriesError):
        return str(getattr(error, "name", None) or type(error).__name__)
    return type(error).__name__


def _read(part: Callable[[], str], otherwise: str) -> str:
    """A part of an author's error, whose code may do anything as it is read."""
    try:
        return part()
    except BaseException:  # noqa: BLE001, raised on, it would end the host with all its runs
        return otherwise


def traceback_of(failure: Failure) -> str | None:
    """The traceback in a failure: the author's frames, the innermost last."""
    detail = None if failure.detail is None else decode(failure.detail)
    # Of a join or a race it has the failures of the branches.
    return detail if isinstance(detail, str) else None


def _parts(error: BaseException) -> Iterator[str]:
    report = traceback.TracebackException.from_exception(error)
    left = [report]
    while left:
        at = left.pop()
        frames = [frame for frame in at.stack if not frame.filename.startswith(_OURS)]
        # An error of our own has no other frames.
        if frames:
            at.stack = traceback.StackSummary.from_list(frames)
        left += filter(None, (at.__cause__, at.__context__, *(at.exceptions or ())))
    for part in report.format():
        yield part if len(part) <= _TRACE_PART_MAX else f"{bounded(part, _TRACE_PART_MAX)}\n"
