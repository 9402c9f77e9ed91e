"""Which attempt of a step the running code belongs to."""

import contextvars

import msgspec


class CurrentAttempt(msgspec.Struct, frozen=True, gc=False):
    """Which attempt is under way."""

    key: str
    number: int
    #: As `order/order-1`.
    instance: str = ""


#: The attempt that the running code belongs to; log lines name it.
ATTEMPT: contextvars.ContextVar[CurrentAttempt | None] = contextvars.ContextVar(
    "headwater_attempt", default=None
)
