"""Calls of hooks in tests, as the gateway carries them out."""

from typing import Any, Final

from headwater.processors.hooks import HOOK_CALL, HookSigner, verify
from headwater.schemas.history import Once, SendEvent
from headwater.streams.authoring.values import encode

#: Signs the hooks of tests.
SIGNER: Final = HookSigner("key of the test", "test", "http://hooks.test")


def hook_event(
    url: str,
    payload: Any,  # noqa: ANN401, any JSON
    event_id: str,
    now_ms: int,
) -> tuple[str, str, SendEvent]:
    """Return the workflow, instance and command of a call of a hook.

    Raises:
        ValueError: There is no such hook, or it has expired.
    """
    target = verify([SIGNER.key], SIGNER.project, url.rpartition("/")[2])
    if target is None:
        raise ValueError(f"expected the URL of a hook of this test, found {url!r:.120}")
    if now_ms >= target.expires_ms:
        raise ValueError("expected a call before the hook expired")
    once = Once(f"{HOOK_CALL}{target.event_type}", "hook")
    text = encode(payload, "the payload of a hook")
    command = SendEvent(event_id, target.event_type, text, once=once)
    return target.workflow, target.instance_id, command
