"""Records about API keys (topic `api-keys`). No record has a secret, only its SHA-256."""

from typing import TypeAlias

import msgspec


class ApiKeyCreated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An API key was created (key: its id and a number)."""

    #: Id of the key; part of its text.
    id: str
    #: The project that it is valid in.
    project: str
    #: Name for people.
    name: str
    #: Role, a named set of scopes; empty for none.
    role: str
    #: Scopes besides those of the role.
    scopes: tuple[str, ...]
    #: SHA-256 of the text of the key, in hex.
    digest: str
    #: When it expires, Unix milliseconds; 0 for never.
    expires_at_ms: int
    #: Requests per minute; 0 for the limit of the settings.
    rate_limit: int
    #: Id of the key that created it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class ApiKeyRotated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An API key has a new text; the previous one is accepted for some time."""

    #: Id of the key.
    id: str
    #: SHA-256 of the new text, in hex.
    digest: str
    #: Until when the previous text is accepted, Unix milliseconds.
    previous_until_ms: int
    #: When the key expires from now on, Unix milliseconds; 0 for never.
    expires_at_ms: int
    #: Id of the key that rotated it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class ApiKeyRevoked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An API key is no longer accepted, and cannot be again."""

    #: Id of the key.
    id: str
    #: Id of the key that revoked it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class ApiKeyUsed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An API key was used; at most one record an hour (key: its id)."""

    #: Id of the key.
    id: str
    #: Begin of the hour, Unix milliseconds.
    at_ms: int


ApiKeyRecord: TypeAlias = ApiKeyCreated | ApiKeyRotated | ApiKeyRevoked | ApiKeyUsed
