"""When the coordinator of a group last confirmed that this process is a member of it.

aiokafka keeps no time of acknowledged heartbeats. The time that matters is when the request was
sent: the coordinator keeps a member for a session after it received it, and a process that was
suspended may have read the response much later.
"""

from typing import Any, Final

from aiokafka.consumer.group_coordinator import GroupCoordinator

from headwater.streams.clock import monotonic

_HEARTBEAT: Final = 12
_SYNC_GROUP: Final = 14
#: No error, and REBALANCE_IN_PROGRESS, which members get that have to join again.
_MEMBER: Final = (0, 27)

_SEND: Final = GroupCoordinator._send_req  # noqa: SLF001 (aiokafka has no hook there)


def record_confirmations() -> None:
    """Patch aiokafka for all of this process; calling it again changes nothing."""
    GroupCoordinator._send_req = _send_req  # type: ignore[method-assign] # noqa: SLF001


def confirmed_s(coordinator: Any) -> float | None:  # noqa: ANN401 (a GroupCoordinator)
    """Return when the request was sent that last confirmed the membership; None before the first.

    Returns:
        Seconds of `clock.monotonic`.
    """
    sent_s: float | None = getattr(coordinator, "confirmed_s", None)
    return sent_s


async def _send_req(self: Any, request: Any) -> Any:  # noqa: ANN401 (as aiokafka has it)
    sent_s = monotonic()
    response = await _SEND(self, request)  # type: ignore[no-untyped-call]
    if response.API_KEY in (_HEARTBEAT, _SYNC_GROUP) and response.error_code in _MEMBER:
        self.confirmed_s = sent_s
        confirmed = getattr(self._subscription.listener, "on_confirmed", None)
        if confirmed is not None:
            confirmed(sent_s)
    return response
