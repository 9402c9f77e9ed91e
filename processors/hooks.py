"""Tokens of hooks: each lets its bearer send one event to one run, which waits for it.

A token is the target and a MAC of it. The MAC's key is derived from a key of the settings, the
project and the instance. So the process that runs an author's code holds the key of one instance
only, and a token of another project with the same key of the settings is refused.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.history import instance_key

#: Prefix of the type of a hook's event.
EVENT_PREFIX: Final = "hook-"
#: Prefix of the idempotency key of a call; those of clients have no space after such a word.
HOOK_CALL: Final = "hook "
#: Characters of a token that may be valid.
TOKEN_CHARS_MAX: Final = 1_024
_MAC_BYTES: Final = 16
_TYPE_BYTES: Final = 16
_DOMAIN: Final = b"headwater hook "


class HookTarget(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the bearer of a token may do: send an event of a type to an instance, until a time."""

    workflow: str
    instance_id: str
    event_type: str
    expires_ms: int


class HookOrigin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What creates the hooks of one instance: its key, and the URL before a token."""

    key: bytes
    url: str


class HookSigner(NamedTuple):
    """The current key of hooks, the project, and the public URL of the gateway."""

    key: str
    project: str
    url: str

    def origin(self, workflow: str, instance_id: str) -> HookOrigin:
        """Return what creates the hooks of an instance."""
        own = _key_of(self.key, self.project, workflow, instance_id)
        return HookOrigin(own, f"{self.url}/v1/hooks/")


def hook_event_type(seed: str, run_number: int, key: str) -> str:
    """Return the type of a hook's event: of one entry of one run.

    Args:
        seed: Seed of the run.
        run_number: Number of the run: a retried run has the seed of the one before.
        key: Key of the entry.
    """
    digest = blake2b(f"{seed}/{run_number}/{key}".encode(), digest_size=_TYPE_BYTES).hexdigest()
    return f"{EVENT_PREFIX}{digest}"


def sign(key: bytes, target: HookTarget) -> str:
    """Return the token of a target, signed with the key of its instance."""
    payload = msgspec.json.encode(target)
    return f"{_text(payload)}.{_text(_mac(key, payload))}"


def verify(keys: Iterable[str], project: str, token: str) -> HookTarget | None:
    """Return the target of a token that one of the keys has signed for a project, or None."""
    payload_text, _, mac_text = token.partition(".")
    if len(token) > TOKEN_CHARS_MAX:
        return None
    try:
        payload, mac = _bytes(payload_text), _bytes(mac_text)
        target = msgspec.json.decode(payload, type=HookTarget)
    except (Error, ValueError):
        return None
    for key in keys:
        own = _key_of(key, project, target.workflow, target.instance_id)
        if hmac.compare_digest(_mac(own, payload), mac):
            return target
    return None


def _key_of(key: str, project: str, workflow: str, instance_id: str) -> bytes:
    # The name of a project has no space.
    name = f"{project} {instance_key(workflow, instance_id)}".encode()
    return hmac.digest(key.encode(), _DOMAIN + name, "sha256")


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, payload, "sha256")[:_MAC_BYTES]


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
