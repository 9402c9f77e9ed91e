"""Checks of arguments in tests, which refuse what the server would refuse in a request body."""

from headwater.processors.runs.limits import REASON_MAX, STEP_KEY_MAX, TICK_MAX
from headwater.schemas.failures import refused
from headwater.streams.authoring.values import utf8_safe

#: Error code for a body that its route does not accept.
_INVALID_BODY = "invalid_body"


def check_count(name: str, count: object) -> None:
    """Check a limit of a tick.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is out of range.
    """
    if count is None:
        return
    message = f"expected {name} to be a whole number from 1 to {TICK_MAX:,}, found {count!r:.80}"
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(message)
    if not 1 <= count <= TICK_MAX:
        raise ValueError(message)


def check_reason(reason: object) -> None:
    """Check the reason for ending an instance.

    Raises:
        CommandRefusedError: It is not text, or longer than the API accepts.
    """
    _check_text("the reason", reason, 0, REASON_MAX)


def check_from_step(key: object) -> None:
    """Check the key of the step from which an instance is retried.

    Raises:
        CommandRefusedError: It cannot be the key of a step.
    """
    if key is not None:
        _check_text("fromStep", key, 1, STEP_KEY_MAX)
        if isinstance(key, str) and "\0" in key:
            raise refused(_INVALID_BODY, "fromStep: expected a step's key without NUL")


def _check_text(what: str, text: object, least: int, most: int) -> None:
    if not isinstance(text, str) or not least <= len(text) <= most or utf8_safe(text) != text:
        raise refused(
            _INVALID_BODY,
            f"expected {what} to be text of {least} to {most:,} characters that UTF-8 can hold, "
            f"found {text!r:.80}",
        )
