"""The child's main program where people look on: each line that is printed says whose it is."""

import io
import sys
from typing import Final, TextIO

from typing_extensions import override

from headwater.streams.authoring.attempt import ATTEMPT
from headwater.streams.code_host.child import main

#: Stands between whose a line is, and the line.
SAYS: Final = " | "
#: Characters of a line that is not ended, and how many of these there may be: a step may print
#: without end, and many steps end in the middle of a line.
LINE_MAX: Final = 64 * 1024
BEGUN_MAX: Final = 256


class NamedLines(io.TextIOBase):
    """A stream whose lines begin with the step that prints them, as `order/o-1 quote | `.

    Shape:  what no step prints is the app's; a line that is not ended waits for its end, unless it
            is longer than LINE_MAX, or begun before BEGUN_MAX others.
    """

    def __init__(self, stream: TextIO, app: str) -> None:
        self._stream = stream
        self._app = app
        self._begun: dict[str, str] = {}

    @override
    def write(self, text: str) -> int:
        attempt = ATTEMPT.get()
        name = self._app if attempt is None else f"{attempt.instance} {attempt.key}"
        *lines, rest = (self._begun.pop(name, "") + text).split("\n")
        if len(rest) > LINE_MAX:
            lines.append(rest)
            rest = ""
        if rest:
            self._begun[name] = rest
        if len(self._begun) > BEGUN_MAX:
            oldest = next(iter(self._begun))
            self._stream.write(f"{oldest}{SAYS}{self._begun.pop(oldest)}\n")
        if lines:
            self._stream.write("".join(f"{name}{SAYS}{line}\n" for line in lines))
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
