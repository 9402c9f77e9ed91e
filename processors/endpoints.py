"""Endpoints of notifications: a fold of their topic, and which notifications they receive."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from headwater.processors.notifications import Notification, NotificationType
from headwater.processors.runs.limits import BUILTIN_PREFIX
from headwater.schemas.endpoints import (
    EndpointCreated,
    EndpointDeleted,
    EndpointRecord,
    EndpointSecretSet,
    EndpointStateSet,
)

#: Random bytes of an id and of a secret; Standard Webhooks recommends 24 to 64 for the latter.
ID_BYTES: Final = 10
SECRET_BYTES: Final = 32
ID_PREFIX: Final = "ep_"
#: Endpoints of a project: every worker has all of them in memory, and compares every event with
#: them. A hundred cost some 10 microseconds per event.
ENDPOINTS_MAX: Final = 100
#: Events that are this much older than an endpoint are delivered, too: the clocks of gateways and
#: brokers may differ.
SKEW_MS: Final = 10_000


class EndpointState(StrEnum):
    """Whether notifications are sent to an endpoint."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint.

    Attributes:
        secret: The current secret; None while its record has not arrived.
        state_set: The latest change of its state; None if there was none.
    """

    created: EndpointCreated
    secret: EndpointSecretSet | None = None
    state_set: EndpointStateSet | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self.created.id

    @property
    def is_active(self) -> bool:
        """Whether notifications are sent to it."""
        return self.state_set is None or self.state_set.state == EndpointState.ACTIVE

    @property
    def active_since_ms(self) -> int:
        """Since when it has received notifications, Unix milliseconds."""
        return self.created.at_ms if self.state_set is None else self.state_set.at_ms

    def secrets(self, now_ms: int) -> tuple[str, ...]:
        """Return the secrets that sign now, the current one first."""
        if self.secret is None:
            return ()
        if self.secret.previous and now_ms < self.secret.previous_until_ms:
            return self.secret.secret, self.secret.previous
        return (self.secret.secret,)

    def takes(self, notification: Notification) -> bool:
        """Return whether the filters of the endpoint accept a notification.

        Of built-in workflows they accept failures, unless they name the workflow.
        """
        created, workflow = self.created, notification.workflow
        is_builtin = workflow.startswith(BUILTIN_PREFIX) and workflow not in created.workflows
        return (
            notification.type in created.types
            and (notification.type == NotificationType.INSTANCE_ERRORED or not is_builtin)
            and _accepts(created.workflows, workflow)
            and _accepts(created.tables, notification.table)
            and _accepts(created.reasons, notification.reason)
        )


def _accepts(names: tuple[str, ...], name: str) -> bool:
    """Return whether a filter accepts the name of what a notification is about, if it has one."""
    return not names or not name or name in names


class Endpoints:
    """All endpoints, in the order of creation."""

    def __init__(self) -> None:
        self.by_id: dict[str, Endpoint] = {}
        #: Of endpoints that are created later: a secret is durable before its endpoint.
        self._secrets: dict[str, EndpointSecretSet] = {}

    def apply(self, record: EndpointRecord) -> Endpoint | None:
        """Apply a record; return the endpoint that it changed, or None if it has no effect."""
        if isinstance(record, EndpointDeleted):
            self._secrets.pop(record.id, None)
            return self.by_id.pop(record.id, None)
        changed = self._changed(record, self.by_id.get(record.id))
        if changed is not None:
            self.by_id[record.id] = changed
        return changed

    def _changed(
        self,
        record: EndpointCreated | EndpointSecretSet | EndpointStateSet,
        endpoint: Endpoint | None,
    ) -> Endpoint | None:
        match record:
            case EndpointCreated() if endpoint is None:
                return Endpoint(created=record, secret=self._secrets.pop(record.id, None))
            case EndpointSecretSet() if endpoint is None:
                self._secrets[record.id] = record
            case EndpointSecretSet() if endpoint is not None:
                return msgspec.structs.replace(endpoint, secret=record)
            case EndpointStateSet() if endpoint is not None:
                return msgspec.structs.replace(endpoint, state_set=record)
            case _:
                pass
        return None

    def active(self) -> Iterator[Endpoint]:
        """Yield the endpoints that receive notifications."""
        return (endpoint for endpoint in self.by_id.values() if endpoint.is_active)
