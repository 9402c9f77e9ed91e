"""Ports of the built-in workflows, used only in their steps."""

from collections.abc import Collection, Sequence
from datetime import date
from typing import Protocol

from headwater.gateway.builtin.blobs.store import Blobs
from headwater.projections.workflows.expired import Expired, Expiry, PruneCursor
from headwater.schemas.providers.headwater import SystemEvent


class TerraRequests(Protocol):
    """Requests to Terra. All methods raise TerraNotConfigured, TerraFailed, TerraRefused.

    See `gateway.terra.client`.
    """

    async def request_data(self, kind: str, user_id: str, start: date, end: date) -> str:
        """Request the data of a connection; return Terra's reference."""

    async def upload_lab_report(
        self, reference_id: str, *, name: str, content_type: str, content: bytes
    ) -> tuple[str, str]:
        """Upload a lab report; return the id of the upload, and the whole response."""


class ConnectionQueries(Protocol):
    """Queries of connections. All methods raise StoreUnavailable."""

    async def active_connections(self, *, after: str, limit: int) -> Sequence[str]:
        """Return Terra's ids of active connections in the order of their MD5, after a digest."""

    async def active_connections_of(self, digests: Collection[str]) -> Sequence[str]:
        """Return Terra's ids of the active connections with these digests."""


class InstancePruner(Protocol):
    """Deletes instances past their retention.

    All methods raise StoreUnavailable, BrokerUnavailable, OutcomeUnknown, Overloaded.
    """

    async def expired(self, expiry: Expiry, after: PruneCursor, limit: int) -> Sequence[Expired]:
        """Return instances past their retention, after a cursor."""

    async def delete_unchanged(self, page: Sequence[Expired]) -> int:
        """Delete the instances that have not changed since; return how many were deleted."""

    async def erase(self) -> int:
        """Erase the history of deleted instances; return the number of records."""


class FactLog(Protocol):
    """The topic `webhooks`, for system events."""

    async def publish_fact(self, fact: SystemEvent, *, request_id: str) -> object:
        """Append a system event; return when it is durable. Repeating it is safe.

        Raises:
            BrokerUnavailable: Kafka did not acknowledge in time.
            Overloaded: Too many records wait for Kafka.
        """


class TerraDependencies(Protocol):
    """Dependencies of the Terra workflows, opened on first use."""

    async def terra(self) -> TerraRequests:
        """Return Terra's API."""

    async def connections(self) -> ConnectionQueries:
        """Return the queries of connections."""

    async def blobs(self) -> Blobs:
        """Return the blob store."""

    async def facts(self) -> FactLog:
        """Return the log for system events."""
