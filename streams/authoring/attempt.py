"""The attempt of a step that the running code belongs to."""

import contextvars

import msgspec


class CurrentAttempt(msgspec.Struct, frozen=True, gc=False):
    """The attempt that is running."""

    key: str
    number: int
    #: For example `order/order-1`.
    instance: str = ""


#: The attempt that the running code belongs to. Log lines name it.
ATTEMPT: contextvars.ContextVar[CurrentAttempt | None] = contextvars.ContextVar(
    "headwater_attempt", default=None
)
