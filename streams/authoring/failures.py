"""Convert exceptions of authors' code to data."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from headwater.processors.code.errors import NonRetryableError, StepFailedError, TooManyEntriesError
from headwater.processors.runs.limits import FAILURE_NAME_MAX, bounded
from headwater.schemas.history import Failure
from headwater.streams.authoring.values import decode, encode, utf8_safe

#: Characters of a traceback that are kept: of its beginning, which has the author's own line, and
#: of its end, which names the failing one.
_TRACE_MAX: Final = 4_000
_TRACE_HEAD: Final = 1_500
#: Characters of a frame or message in it, so that a long message does not displace the frames.
_TRACE_PART_MAX: Final = 1_000
#: Folder of the code that runs authors' code.
_OURS: Final = str(Path(__file__).parents[1])


def failure_of(error: BaseException) -> Failure:
    """Convert an exception to data; for a failed step, the exception that made it fail.

    A long message is truncated, because several failures may have to fit into one record.
    """
    # Headwater's exceptions may be subclassed by authors without calling `super().__init__`, for
    # example by a dataclass. The attributes that it sets are then missing.
    if isinstance(error, StepFailedError) and isinstance(
        failure := getattr(error, "error", None), Failure
    ):
        return failure
    name = _read(lambda: _name_of(error), "Exception")
    text = _read(lambda: str(error), "(its text cannot be created)")
    trace = _read(lambda: utf8_safe("".join(_parts(error))), "(its traceback cannot be created)")
    if len(trace) > _TRACE_MAX:
        trace = f"{trace[:_TRACE_HEAD]}\n  …\n{trace[_TRACE_HEAD - _TRACE_MAX :]}"
    return Failure(
        bounded(utf8_safe(name), FAILURE_NAME_MAX),
        bounded(utf8_safe(text)),
        encode(trace, "a traceback"),
    )


def _name_of(error: BaseException) -> str:
    # Not the `name` of any exception: that of an AttributeError is the name of the attribute.
    if isinstance(error, NonRetryableError | TooManyEntriesError):
        return str(getattr(error, "name", None) or type(error).__name__)
    return type(error).__name__


def _read(read: Callable[[], str], default: str) -> str:
    """Call `read`, which runs an author's code, and return `default` if it raises."""
    try:
        return read()
    except BaseException:  # noqa: BLE001, otherwise it would end the host with all its runs
        return default


def traceback_of(failure: Failure) -> str | None:
    """Return the traceback of a failure: the author's frames, innermost last."""
    detail = None if failure.detail is None else decode(failure.detail)
    # The detail of a join or a race holds the failures of its branches.
    return detail if isinstance(detail, str) else None


def _parts(error: BaseException) -> Iterator[str]:
    report = traceback.TracebackException.from_exception(error)
    pending = [report]
    while pending:
        current = pending.pop()
        frames = [frame for frame in current.stack if not frame.filename.startswith(_OURS)]
        # An error that Headwater itself raised has no other frames.
        if frames:
            current.stack = traceback.StackSummary.from_list(frames)
        pending += filter(
            None, (current.__cause__, current.__context__, *(current.exceptions or ()))
        )
    for part in report.format():
        yield part if len(part) <= _TRACE_PART_MAX else f"{bounded(part, _TRACE_PART_MAX)}\n"
