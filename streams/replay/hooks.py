"""Hooks of a run: URLs by which another party sends it one event."""

from dataclasses import dataclass
from datetime import datetime

from headwater.processors.code.errors import NonRetryableError
from headwater.processors.hooks import HookTarget, hook_event_type, sign
from headwater.streams.authoring.arguments import utc_datetime
from headwater.streams.replay.run_context import RunContext


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook of a run.

    Attributes:
        url: URL for one POST; a caller that has it can send the event.
        type: Type of the event, for `step.wait_for_event`.
        expires_at: When the URL stops working, as an aware datetime.
    """

    url: str
    type: str
    expires_at: datetime


def hook_of(run: RunContext, key: str, timeout_ms: int) -> Hook:
    """Return a new hook of a run: a callback of a step, so that its history has it.

    Args:
        run: The run.
        key: Key of the step.
        timeout_ms: Milliseconds until it expires.

    Raises:
        NonRetryableError: No key of hooks is configured.
    """
    begin = run.begin
    origin = begin.hooks
    if origin is None:
        raise NonRetryableError(
            "expected a key of hooks, found none: set HEADWATER_HOOK_KEYS for the gateway and the "
            "workers"
        )
    expires_ms = run.host.now_ms() + timeout_ms
    type_ = hook_event_type(begin.seed, begin.run_number, key)
    target = HookTarget(begin.workflow, begin.instance_id, type_, expires_ms)
    return Hook(f"{origin.url}{sign(origin.key, target)}", type_, utc_datetime(expires_ms))
