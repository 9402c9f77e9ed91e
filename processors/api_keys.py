"""API keys: scopes and roles, the format of a key, and a fold of their topic in its order.

A key is `hw_<number>_<secret>`; its id is `key_<number>`. The secret has 256 random bits, so a
plain SHA-256 protects it: a slow hash is for secrets that can be guessed.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.api_keys import (
    ApiKeyCreated,
    ApiKeyRecord,
    ApiKeyRevoked,
    ApiKeyRotated,
    ApiKeyUsed,
)


class Scope(StrEnum):
    """What a key may do. Every route that takes keys names one."""

    DELIVERIES_READ = "deliveries:read"
    DELIVERIES_WRITE = "deliveries:write"
    ROWS_READ = "rows:read"
    PERSONAL_DATA_READ = "personal_data:read"
    PERSONAL_DATA_WRITE = "personal_data:write"
    PERSONAL_DATA_DELETE = "personal_data:delete"
    INSTANCES_READ = "instances:read"
    INSTANCES_WRITE = "instances:write"
    INSTANCES_PRUNE = "instances:prune"
    JOBS_WORK = "jobs:work"
    GRAPHS_WRITE = "graphs:write"
    DEPLOYMENTS_READ = "deployments:read"
    DEPLOYMENTS_WRITE = "deployments:write"
    DEPLOYMENTS_ACTIVATE = "deployments:activate"
    WORLD_READ = "world:read"
    WORLD_WRITE = "world:write"
    TICKS_WRITE = "ticks:write"
    SYSTEM_READ = "system:read"
    SYSTEM_WRITE = "system:write"
    PROJECTIONS_WRITE = "projections:write"
    AUDIT_READ = "audit:read"
    ENDPOINTS_READ = "endpoints:read"
    ENDPOINTS_WRITE = "endpoints:write"
    KEYS_READ = "keys:read"
    KEYS_WRITE = "keys:write"


class Role(StrEnum):
    """A named set of scopes for people."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER: Final = frozenset(
    {Scope.DELIVERIES_READ, Scope.INSTANCES_READ, Scope.DEPLOYMENTS_READ, Scope.SYSTEM_READ}
)
#: Scopes of every role. A later release may add scopes to a role, also for existing keys.
SCOPES_OF_ROLE: Final = {
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _VIEWER
    | {
        Scope.DELIVERIES_WRITE,
        Scope.ROWS_READ,
        Scope.PERSONAL_DATA_READ,
        Scope.PERSONAL_DATA_WRITE,
        Scope.INSTANCES_WRITE,
        Scope.GRAPHS_WRITE,
        Scope.DEPLOYMENTS_WRITE,
        Scope.DEPLOYMENTS_ACTIVATE,
        Scope.PROJECTIONS_WRITE,
        Scope.AUDIT_READ,
        Scope.ENDPOINTS_READ,
        Scope.ENDPOINTS_WRITE,
    },
    Role.ADMIN: frozenset(Scope),
}


def scopes_of(role: str, scopes: Iterable[str]) -> frozenset[str]:
    """Return the scopes of a role, if any, and further ones.

    A role of a later release has no scopes here.
    """
    of_role = SCOPES_OF_ROLE.get(Role(role)) if role in set(Role) else None
    return frozenset(map(str, of_role or ())) | frozenset(scopes)


# -- keys

#: Begin of every key. Scanners for secrets can recognize it.
PREFIX: Final = "hw_"
#: Random bytes of a number and of a secret. Of a million keys, two have the same number with a
#: probability of 1 in 10^9; the fold then keeps the first.
NUMBER_BYTES: Final = 10
SECRET_BYTES: Final = 32
_ID_PREFIX: Final = "key_"
_TEXT: Final = re.compile(rf"hw_([0-9a-f]{{{2 * NUMBER_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}")
#: Precision of the time of the last use.
USE_PRECISION_MS: Final = 60 * 60 * 1000


def key_text(number: bytes, secret: bytes) -> str:
    """Return the text of a key."""
    return f"{PREFIX}{number.hex()}_{secret.hex()}"


def renewed_text(key_id: str, secret: bytes) -> str:
    """Return the text of a key with a new secret."""
    return f"{PREFIX}{key_id.removeprefix(_ID_PREFIX)}_{secret.hex()}"


def id_of(text: str) -> str | None:
    """Return the id in the text of a key; None if the text does not have the format of a key."""
    match = _TEXT.fullmatch(text)
    return None if match is None else f"{_ID_PREFIX}{match[1]}"


def digest_of(text: str) -> str:
    """Return the SHA-256 of the text of a key, in hex."""
    return sha256(text.encode(errors="replace")).hexdigest()


class Secret(NamedTuple):
    """SHA-256 of a text of a key, and until when it is accepted; 0 for as long as the key."""

    digest: str
    until_ms: int = 0


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """State of a key.

    Attributes:
        secrets: The current text, then the previous one while the key is rotated.
        rotated_by: Id of the key that drew the current text; empty if it was not rotated.
        revoked_at_ms: Unix milliseconds; 0 if it was not revoked.
        last_used_at_ms: Begin of the hour of the last use, Unix milliseconds; 0 if never.
    """

    created: ApiKeyCreated
    secrets: tuple[Secret, ...]
    expires_at_ms: int
    rotated_at_ms: int = 0
    rotated_by: str = ""
    revoked_at_ms: int = 0
    revoked_by: str = ""
    last_used_at_ms: int = 0

    @property
    def scopes(self) -> frozenset[str]:
        """All scopes, those of the role included."""
        return scopes_of(self.created.role, self.created.scopes)

    def ended(self, now_ms: int) -> bool:
        """Whether the key was revoked or has expired."""
        return self.revoked_at_ms > 0 or 0 < self.expires_at_ms <= now_ms

    def accepts(self, digest: str, now_ms: int) -> bool:
        """Whether a digest is that of a text which is valid now."""
        # All are compared, so that the time reveals nothing.
        matching = [compare_digest(secret.digest, digest) for secret in self.secrets]
        valid = [secret.until_ms == 0 or secret.until_ms > now_ms for secret in self.secrets]
        return any(map(min, matching, valid)) and not self.ended(now_ms)


class ApiKeys:
    """All keys of all projects, in the order of creation."""

    def __init__(self) -> None:
        self.by_id: dict[str, ApiKey] = {}

    def apply(self, record: ApiKeyRecord) -> ApiKey | None:
        """Apply a record; return the key that it changed, or None if it has no effect.

        A key that was revoked stays revoked, in whatever order requests arrived. So do the keys
        that it created, also one whose creation was recorded later. A rotation by a revoked key
        has no effect: its text would be valid, and no revocation would have named it.
        """
        key = self.by_id.get(record.id)
        if isinstance(record, ApiKeyCreated):
            changed = _created(record, self.by_id.get(record.by)) if key is None else None
        elif isinstance(record, ApiKeyRotated) and self._is_revoked(record.by):
            changed = None
        else:
            changed = None if key is None else _changed(key, record)
        if changed is not None:
            self.by_id[record.id] = changed
            if isinstance(record, ApiKeyRevoked):
                for created in self.created_by(record.id):
                    self.by_id[created.created.id] = _revoked(created, record)
        return changed

    def _is_revoked(self, key_id: str) -> bool:
        key = self.by_id.get(key_id)
        return key is not None and key.revoked_at_ms > 0

    def created_by(self, key_id: str) -> list[ApiKey]:
        """Return the keys that a key created, and those that these created, and so on."""
        found: dict[str, ApiKey] = {}
        creators = {key_id}
        while creators:
            created = {
                name: key
                for name, key in self.by_id.items()
                if key.created.by in creators and name not in {key_id, *found}
            }
            found |= created
            creators = set(created)
        return list(found.values())

    def find(self, text: str, project: str, now_ms: int) -> ApiKey | None:
        """Return the key with a text that is valid in a project now, if any."""
        key = self.by_id.get(id_of(text) or "")
        if key is None or key.created.project != project:
            return None
        return key if key.accepts(digest_of(text), now_ms) else None


def _created(record: ApiKeyCreated, creator: ApiKey | None) -> ApiKey:
    return ApiKey(
        created=record,
        secrets=(Secret(record.digest),),
        expires_at_ms=record.expires_at_ms,
        revoked_at_ms=creator.revoked_at_ms if creator else 0,
        revoked_by=creator.revoked_by if creator else "",
    )


def _changed(key: ApiKey, record: ApiKeyRotated | ApiKeyRevoked | ApiKeyUsed) -> ApiKey | None:
    match record:
        case ApiKeyUsed():
            last_ms = max(key.last_used_at_ms, record.at_ms)
            return msgspec.structs.replace(key, last_used_at_ms=last_ms)
        case _ if key.revoked_at_ms:
            return None
        case ApiKeyRotated():
            return _rotated(key, record)
        case ApiKeyRevoked():
            return _revoked(key, record)


def _revoked(key: ApiKey, record: ApiKeyRevoked) -> ApiKey:
    if key.revoked_at_ms:
        return key
    return msgspec.structs.replace(key, revoked_at_ms=record.at_ms, revoked_by=record.by)


def _rotated(key: ApiKey, record: ApiKeyRotated) -> ApiKey:
    previous = Secret(key.secrets[0].digest, record.previous_until_ms)
    return msgspec.structs.replace(
        key,
        secrets=(Secret(record.digest), previous),
        expires_at_ms=record.expires_at_ms,
        rotated_at_ms=record.at_ms,
        rotated_by=record.by,
    )
