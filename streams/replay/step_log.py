"""`step.log`: durable log lines of a run."""

from collections.abc import Coroutine, Generator
from typing import Any, Final, NoReturn

from typing_extensions import override

from headwater.processors.code.host_messages import Log
from headwater.processors.runs.limits import SYSTEM, control_character
from headwater.schemas.history import Limits
from headwater.streams.authoring.values import encode, utf8_safe
from headwater.streams.replay.host_port import ATTEMPT
from headwater.streams.replay.scope import Scope


class _Written(Coroutine[Any, Any, None]):
    """Result of a call with a line that is already written. It may be awaited, run, or ignored."""

    @override
    def send(self, value: object) -> NoReturn:
        raise StopIteration

    @override
    def throw(self, *_: object) -> NoReturn:
        raise StopIteration

    @override
    def close(self) -> None:
        pass

    @override
    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_WRITTEN: Final = _Written()


class StepLog:
    """Writes log lines. Lines that workflow code repeats on a replay are dropped.

    With `replayed_lines`, the workflow keeps them, marked as replayed.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def debug(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> Coroutine[Any, Any, None]:
        """Write a line of level debug."""
        return self._line("debug", message, data, category)

    def info(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> Coroutine[Any, Any, None]:
        """Write a line of level info."""
        return self._line("info", message, data, category)

    def warn(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> Coroutine[Any, Any, None]:
        """Write a line of level warn."""
        return self._line("warn", message, data, category)

    def error(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> Coroutine[Any, Any, None]:
        """Write a line of level error."""
        return self._line("error", message, data, category)

    def _line(
        self,
        level: str,
        message: str,
        data: Any,  # noqa: ANN401
        category: str,
    ) -> Coroutine[Any, Any, None]:
        run = self._scope.run
        self._scope.check_run(f"log.{level}")
        if not run.loop.is_executing():
            # In a step's callback, which may be a plain function that cannot await.
            self._write(level, message, data, category)
            return _WRITTEN
        ticket = run.ticket()
        line = self._write_when_awaited(ticket, level, message, data, category)
        run.unawaited[ticket] = (self._scope, f"log.{level}({message!r:.60})", line)
        return line

    async def _write_when_awaited(
        self,
        ticket: int,
        level: str,
        message: str,
        data: Any,  # noqa: ANN401
        category: str,
    ) -> None:
        self._scope.run.unawaited.pop(ticket, None)
        self._write(level, message, data, category)

    def _write(
        self,
        level: str,
        message: str,
        data: Any,  # noqa: ANN401
        category: str,
    ) -> None:
        run = self._scope.run
        text = self._checked(message, data, category)
        attempt = ATTEMPT.get()
        key, number = (attempt.key, attempt.number) if attempt else (None, None)
        seen = run.lines.next_is_new(self._scope.since) if attempt is None else None
        replayed = attempt is None and seen is None
        if replayed and not run.replayed_lines:
            return
        line = Log(
            level, utf8_safe(category), utf8_safe(message), text, key, number, replayed, seen=seen
        )
        run.send(line)

    def _checked(self, message: str, data: Any, category: str) -> str | None:  # noqa: ANN401
        """Return the data of a line as JSON text. Raise if the line breaks the rules."""
        limits = self._scope.run.limits
        _check(message, category, limits)
        if data is None:
            return None
        most = limits.max_log_data_bytes
        return encode(data, "the data of a log line", most, "max_log_data_bytes")


def _check(message: object, category: object, limits: Limits) -> None:
    if not isinstance(message, str) or not isinstance(category, str):
        raise TypeError(
            "expected the message and the category of a log line to be text, "
            f"found {message!r:.80} and {category!r:.80}; pass other values as data"
        )
    if control_character(category):
        raise ValueError(f"expected a category without control characters, found {category[:80]!r}")
    if category == SYSTEM:
        raise ValueError(
            f"expected a category of your own, found {SYSTEM!r}, which is the engine's"
        )
    longest = limits.max_log_category
    if not 0 < len(category) <= longest:
        raise ValueError(
            f"expected a category of 1 to {longest} characters (max_log_category), found "
            f"{category[:80]!r}"
        )
    longest = limits.max_log_message
    if len(message) > longest:
        raise ValueError(
            f"expected a log message of at most {longest} characters (max_log_message), found "
            f"{len(message)}"
        )
