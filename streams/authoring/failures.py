"""Exceptions of authors' code as data."""

import traceback
from typing import Final

from headwater.processors.replay.errors import (
    NonRetryableError,
    StepFailedError,
    TooManyEntriesError,
)
from headwater.processors.runs.limits import FAILURE_NAME_MAX, bounded
from headwater.schemas.history import Failure
from headwater.streams.authoring.values import encode, sound

#: Characters of a traceback that are kept: the end says where it was.
_TRACE_MAX: Final = 4_000


def failure_of(error: BaseException) -> Failure:
    """An exception as data; of a failed step, the exception that made it fail.

    Its message is cut where it is too long: several of them may have to fit into one record.
    """
    if isinstance(error, StepFailedError):
        return error.error
    # Not of any error that has a name: of an AttributeError it is that of the attribute.
    if isinstance(error, NonRetryableError | TooManyEntriesError):
        name = str(error.name)
    else:
        name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001, an author's __str__ may do anything
        text = "(its text could not be made)"
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace = sound("".join(lines)[-_TRACE_MAX:])
    return Failure(
        bounded(sound(name), FAILURE_NAME_MAX), bounded(sound(text)), encode(trace, "a traceback")
    )
