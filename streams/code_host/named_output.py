"""Output of authors' code: every printed line names its step, for people or as JSON."""

import io
import logging
import sys
from typing import Final, TextIO

from typing_extensions import override

from headwater.streams.clock import now_ms
from headwater.streams.log_lines import CollectFields, JsonLines, LogStyle, json_line, utc_text
from headwater.streams.replay.host_port import ATTEMPT, CurrentAttempt

#: Separates the name of the step from the line.
SEPARATOR: Final = " | "
#: Characters of an unfinished line, and number of unfinished lines that are kept: a step may print
#: without newlines, and many steps may end in the middle of a line.
LINE_MAX: Final = 64 * 1024
UNFINISHED_MAX: Final = 256


def use_style(style: LogStyle, app: str) -> None:
    """Write what the code prints and logs from now on in the style of the worker's log."""
    if style.json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(JsonLines(style))
        handler.addFilter(CollectFields(_current_fields))
        # Unless the app configures logging itself.
        logging.lastResort = handler
        sys.stdout = JsonPrinted(sys.stdout, app, style)
        sys.stderr = JsonPrinted(sys.stderr, app, style)
    elif style.names_steps:
        sys.stdout, sys.stderr = NamedLines(sys.stdout, app), NamedLines(sys.stderr, app)


def _current_fields() -> dict[str, object]:
    return _fields(ATTEMPT.get())


def _fields(attempt: CurrentAttempt | None) -> dict[str, object]:
    if attempt is None:
        return {}
    return {
        "instance": attempt.instance,
        "run": attempt.run,
        "step": attempt.key,
        "attempt": attempt.number,
    }


class NamedLines(io.TextIOBase):
    """A stream with lines that begin with the step that prints them, as `order/o-1 quote | `.

    Output outside of a step is attributed to the app. An unfinished line is kept until it ends, is
    longer than LINE_MAX, or is the oldest of more than UNFINISHED_MAX.
    """

    def __init__(self, stream: TextIO, app: str) -> None:
        self._stream = stream
        self._app = app
        self._unfinished: dict[CurrentAttempt | None, str] = {}

    def _line(self, attempt: CurrentAttempt | None, text: str) -> str:
        """Return a line of an attempt, or of no step, as it is written."""
        name = self._app if attempt is None else f"{attempt.instance} {attempt.key}"
        return f"{name}{SEPARATOR}{text}\n"

    @override
    def write(self, text: str) -> int:
        attempt = ATTEMPT.get()
        *lines, rest = (self._unfinished.pop(attempt, "") + text).split("\n")
        if len(rest) > LINE_MAX:
            lines.append(rest)
            rest = ""
        if rest:
            self._unfinished[attempt] = rest
        if len(self._unfinished) > UNFINISHED_MAX:
            oldest = next(iter(self._unfinished))
            self._stream.write(self._line(oldest, self._unfinished.pop(oldest)))
        if lines:
            self._stream.write("".join(self._line(attempt, line) for line in lines))
            self._stream.flush()
        return len(text)

    @override
    def flush(self) -> None:
        self._stream.flush()

    @override
    def fileno(self) -> int:
        return self._stream.fileno()


class JsonPrinted(NamedLines):
    """A stream with lines that are JSON objects, with the fields of the step that prints them."""

    def __init__(self, stream: TextIO, app: str, style: LogStyle) -> None:
        super().__init__(stream, app)
        self._style = style

    @override
    def _line(self, attempt: CurrentAttempt | None, text: str) -> str:
        at = utc_text(now_ms() / 1_000)
        line = {"time": at, "level": "info", "logger": self._app, "message": text}
        return json_line(self._style, {**line, **_fields(attempt)}) + "\n"
