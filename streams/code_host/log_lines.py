"""`step.log`: durable log lines."""

from typing import TYPE_CHECKING, Any

from processors.replay.commands import Log
from processors.runs.limits import LOG_CATEGORY_MAX, LOG_MESSAGE_MAX, SYSTEM
from streams.code_host.attempt import ATTEMPT
from streams.code_host.values import encode, sound

if TYPE_CHECKING:
    from streams.code_host.activation import Activation


class StepLog:
    """Writes lines; those of the workflow's own code are written again on replay, and say so."""

    def __init__(self, run: "Activation") -> None:
        self._run = run

    async def debug(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level debug."""
        self._write("debug", message, data, category)

    async def info(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level info."""
        self._write("info", message, data, category)

    async def warn(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level warn."""
        self._write("warn", message, data, category)

    async def error(
        self,
        message: str,
        data: Any = None,  # noqa: ANN401
        *,
        category: str = "workflow",
    ) -> None:
        """Writes a line of level error."""
        self._write("error", message, data, category)

    def _write(self, level: str, message: object, data: Any, category: object) -> None:  # noqa: ANN401
        if not isinstance(message, str) or not isinstance(category, str):
            raise TypeError(
                "expected the message and the category of a log line to be text, "
                f"found {message!r:.80} and {category!r:.80}; pass other values as data"
            )
        if category == SYSTEM:
            raise ValueError(
                f"expected a category of your own, found {SYSTEM!r}, which is the engine's"
            )
        if not 0 < len(category) <= LOG_CATEGORY_MAX:
            raise ValueError(
                f"expected a category of 1 to {LOG_CATEGORY_MAX} characters, "
                f"found {category[:80]!r}"
            )
        if len(message) > LOG_MESSAGE_MAX:
            raise ValueError(
                f"expected a log message of at most {LOG_MESSAGE_MAX} characters, "
                f"found {len(message)}"
            )
        run = self._run
        text = None if data is None else encode(data, "the data of a log line")
        attempt = ATTEMPT.get()
        key, number = (attempt.key, attempt.number) if attempt else (None, None)
        replayed = attempt is None and run.logs_again()
        run.say(Log(level, sound(category), sound(message), text, key, number, replayed))
