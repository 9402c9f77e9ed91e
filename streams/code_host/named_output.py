"""Main program of a host with output for people: every printed line names its step."""

import io
import sys
from typing import Final, TextIO

from typing_extensions import override

from headwater.streams.code_host.child import main
from headwater.streams.replay.host_port import ATTEMPT

#: Separates the name of the step from the line.
SEPARATOR: Final = " | "
#: Characters of an unfinished line, and number of unfinished lines that are kept: a step may print
#: without newlines, and many steps may end in the middle of a line.
LINE_MAX: Final = 64 * 1024
UNFINISHED_MAX: Final = 256


class NamedLines(io.TextIOBase):
    """A stream with lines that begin with the step that prints them, as `order/o-1 quote | `.

    Output outside of a step is attributed to the app. An unfinished line is kept until it ends, is
    longer than LINE_MAX, or is the oldest of more than UNFINISHED_MAX.
    """

    def __init__(self, stream: TextIO, app: str) -> None:
        self._stream = stream
        self._app = app
        self._unfinished: dict[str, str] = {}

    @override
    def write(self, text: str) -> int:
        attempt = ATTEMPT.get()
        name = self._app if attempt is None else f"{attempt.instance} {attempt.key}"
        *lines, rest = (self._unfinished.pop(name, "") + text).split("\n")
        if len(rest) > LINE_MAX:
            lines.append(rest)
            rest = ""
        if rest:
            self._unfinished[name] = rest
        if len(self._unfinished) > UNFINISHED_MAX:
            oldest = next(iter(self._unfinished))
            self._stream.write(f"{oldest}{SEPARATOR}{self._unfinished.pop(oldest)}\n")
        if lines:
            self._stream.write("".join(f"{name}{SEPARATOR}{line}\n" for line in lines))
            self._stream.flush()
        return len(text)

    @override
    def flush(self) -> None:
        self._stream.flush()

    @override
    def fileno(self) -> int:
        return self._stream.fileno()


if __name__ == "__main__":
    app = sys.argv[5]
    sys.stdout, sys.stderr = NamedLines(sys.stdout, app), NamedLines(sys.stderr, app)
    main()
