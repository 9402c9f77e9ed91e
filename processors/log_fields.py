"""Fields of log lines that are known from the context: which request or partition it is about."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

#: Fields of a line besides time, level, logger, message and exception, in the order of the line.
FIELDS: Final = (
    *("request_id", "event_id", "trace_id", "topic", "partition", "offset"),
    *("instance", "run", "step", "attempt"),
)
_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_context: ContextVar[Mapping[str, object]] = ContextVar("headwater_log_fields", default=_NONE)


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add fields to all lines that are logged within a context, also by tasks that start there."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def set_log_fields(**fields: object) -> None:
    """Add fields to all further lines of the current task."""
    _context.set({**_context.get(), **fields})


def current_fields() -> Mapping[str, object]:
    """Return the fields of the current context."""
    return _context.get()
