"""Lines of the log: the same fields in all processes, as JSON or for people.

A field is known from the record (`extra`) or from its context (`log_fields`). A filter collects
both, so the formatters only read the record.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from typing_extensions import override

from headwater.processors.log_fields import FIELDS, current_fields
from headwater.processors.trace_context import current_context

#: The variable by which a process that runs authors' code learns how to write.
_VARIABLE: Final = "HEADWATER_LOG_LINES"


class LogStyle(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a process writes its log.

    Attributes:
        json: Whether a line is a JSON object; else it is for people.
        names_steps: Whether lines for people that a step prints begin with the step.
        project: The project.
        process: Name of the process, such as `gateway-2`.
        host: Name of the machine.
    """

    json: bool = False
    names_steps: bool = False
    project: str = ""
    process: str = ""
    host: str = ""


_style = LogStyle()


class CollectFields(logging.Filter):
    """Collects the fields of a line: those of its record, and those of its context.

    Args:
        more: Returns further fields of the context.
    """

    def __init__(self, more: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__()
        self._more = more

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        trace = current_context()
        traced = {"trace_id": trace.trace_id} if trace else {}
        known = {**traced, **self._more(), **current_fields(), **record.__dict__}
        record.fields = {name: known[name] for name in FIELDS if known.get(name) is not None}
        return True


class JsonLines(logging.Formatter):
    """A line is a JSON object.

    Args:
        style: Names of the project and the process.
    """

    def __init__(self, style: LogStyle) -> None:
        super().__init__()
        self._constant = _constants(style)

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": utc_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            kind, error, _ = record.exc_info
            line["exception"] = {
                "type": kind.__name__ if kind else type(error).__name__,
                "message": str(error),
                "stacktrace": self.formatException(record.exc_info),
            }
        return _encode(line)


class HumanLines(logging.Formatter):
    """A line is for people: its fields come last; a traceback follows it.

    Args:
        prefix: What a line begins with.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        return (
            f"{self._prefix}{utc_text(record.created)} {record.levelname} {record.name}: "
            f"{record.message}{f' [{shown}]' if shown else ''}"
        )


def json_line(style: LogStyle, values: Mapping[str, object]) -> str:
    """Return a line that is not a record of `logging`, such as what a step has printed."""
    return _encode({**values, **_constants(style)})


def utc_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, as lines have it."""
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _constants(style: LogStyle) -> dict[str, Any]:
    names = {"project": style.project, "process": style.process, "host": style.host}
    return {name: value for name, value in names.items() if value} | {"pid": os.getpid()}


def _encode(line: Mapping[str, object]) -> str:
    # Not msgspec: the text of authors may have lone surrogates, and any object may be a field.
    return json.dumps(line, ensure_ascii=False, default=str)


# -- set-up of a process


def log_in(style: LogStyle, level: int | str) -> None:
    """Write the log of this process to stderr; a process that logs already is left as it is."""
    global _style  # noqa: PLW0603 (how this process writes: its children write in the same way)
    _style = style
    prefix = f"{style.process} | " if style.process and not style.json else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(style) if style.json else HumanLines(prefix))
    handler.addFilter(CollectFields())
    logging.basicConfig(level=level, handlers=[handler])


def variables_for_host(process: str, *, names_steps: bool) -> dict[str, str]:
    """Return the environment variable of a child process that runs authors' code.

    Args:
        process: Name of the child.
        names_steps: See `LogStyle`.
    """
    if not _style.json and not names_steps:
        return {}
    style = msgspec.structs.replace(_style, names_steps=names_steps, process=process)
    return {_VARIABLE: msgspec.json.encode(style).decode()}


def inherited_style() -> LogStyle:
    """Return the style from `variables_for_host`, and remove it from the environment."""
    return msgspec.json.decode(os.environ.pop(_VARIABLE, "{}"), type=LogStyle)
