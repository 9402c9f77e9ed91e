"""Records about endpoints of notifications (topic `endpoints`).

A record replaces the earlier one of its kind about an endpoint, by compaction. So a secret leaves
the log some time after it is no longer used.
"""

from typing import TypeAlias

import msgspec


class EndpointCreated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An endpoint was created (key: its id)."""

    #: Id of the endpoint.
    id: str
    #: Where notifications are posted.
    url: str
    #: Description for people.
    description: str
    #: Types of notifications.
    types: tuple[str, ...]
    #: Workflows of notifications about instances; empty for all.
    workflows: tuple[str, ...]
    #: Tables of notifications about rows; empty for all.
    tables: tuple[str, ...]
    #: Reasons of notifications about dead letters; empty for all.
    reasons: tuple[str, ...]
    #: Id of the key that created it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class EndpointSecretSet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An endpoint has a new signing secret (key: its id and `.secret`)."""

    #: Id of the endpoint.
    id: str
    #: The secret, in the format of Standard Webhooks.
    secret: str
    #: The previous secret; empty if there is none.
    previous: str
    #: Until when notifications are also signed with the previous secret, Unix milliseconds.
    previous_until_ms: int
    #: Id of the key that set it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class EndpointStateSet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An endpoint was disabled or enabled (key: its id and `.state`)."""

    #: Id of the endpoint.
    id: str
    #: active or disabled.
    state: str
    #: Why, for people; empty if it is active.
    why: str
    #: Id of the key that did it; headwater if it failed repeatedly.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


class EndpointDeleted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An endpoint was deleted (key: its id)."""

    #: Id of the endpoint.
    id: str
    #: Id of the key that deleted it.
    by: str
    #: When, Unix milliseconds, by the clock of the process that did it.
    at_ms: int


EndpointRecord: TypeAlias = EndpointCreated | EndpointSecretSet | EndpointStateSet | EndpointDeleted
