"""Dependencies of the built-in workflows: their interfaces, and their creation on first use."""

import asyncio
import secrets
from collections.abc import Collection, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final, Protocol

from headwater.gateway.builtin.blobs.folder import blobs_at
from headwater.gateway.builtin.blobs.store import Blobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.addresses import dsn_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.workflows.instances import Expired, Expiry, PruneCursor
from headwater.schemas.providers.headwater import SystemEvent
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from headwater.gateway.builtin.bulk_operations import DeliveryReplays, InstanceDeletion
    from headwater.projections.deliveries.queries import Reader
    from headwater.streams.pipeline.webhook_log import WebhookLog


class TerraRequests(Protocol):
    """Requests to Terra. All methods raise TerraNotConfigured, TerraFailed, TerraRefused.

    See `gateway.builtin.terra.client`.
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


# -- adapters

#: Checks for the connection to Kafka, and seconds between them.
_POLLS: Final = 100
_POLL_S: Final = 0.1
#: Resolution of random numbers.
_RESOLUTION: Final = 1 << 32


class Dependencies:
    """Adapters that the settings configure.

    They are created on first use: most workers run no built-in workflow, and should not wait for
    the imports.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._terra: Terra | None = None
        self._reader: Reader | None = None
        self._replays: DeliveryReplays | None = None
        self._instance_deletion: InstanceDeletion | None = None
        self._blobs: Blobs | None = None
        self._log: WebhookLog | None = None

    async def terra(self) -> Terra:
        """Return Terra's API."""
        if self._terra is None:
            self._terra = Terra(
                self._settings.terra,
                draw=lambda: secrets.randbelow(_RESOLUTION) / _RESOLUTION,
                wall_s=lambda: now_ms() / 1_000,
            )
        return self._terra

    async def replays(self) -> "DeliveryReplays":
        """Return the replays of deliveries."""
        if self._replays is None:
            from headwater.gateway.builtin.bulk_operations import DeliveryReplays  # noqa: PLC0415 (see above)

            self._replays = DeliveryReplays(await self.connections(), self._settings)
        return self._replays

    async def instance_deletion(self) -> "InstanceDeletion":
        """Return the deletion of instances."""
        if self._instance_deletion is None:
            from headwater.gateway.builtin.bulk_operations import InstanceDeletion  # noqa: PLC0415 (see above)

            self._instance_deletion = InstanceDeletion(
                await self.connections(), self._settings, now_ms
            )
        return self._instance_deletion

    async def connections(self) -> "Reader":
        """Return the Postgres reader."""
        if self._reader is None:
            from headwater.projections.deliveries.queries import Reader  # noqa: PLC0415 (see above)

            self._reader = await Reader(dsn_of(self._settings)).open()
        return self._reader

    async def blobs(self) -> Blobs:
        """Return the blob store."""
        if self._blobs is None:
            self._blobs = blobs_at(self._settings.blobs_at)
        return self._blobs

    async def facts(self) -> "WebhookLog":
        """Return the topic `webhooks`; wait up to 10 s until it is connected.

        Raises:
            BrokerUnavailable: Kafka could not be reached.
        """
        if self._log is None:
            self._log = await _started_log(self._settings)
        for _ in range(_POLLS):
            if self._log.ready:
                break
            await asyncio.sleep(_POLL_S)
        return self._log


async def _started_log(settings: Settings) -> "WebhookLog":
    from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (see above)
    from headwater.gateway.settings.sources import sources_of  # noqa: PLC0415 (see above)
    from headwater.processors.providers.provider import Placement  # noqa: PLC0415 (see above)
    from headwater.processors.sources import providers_of  # noqa: PLC0415 (see above)
    from headwater.streams.pipeline.webhook_log import WebhookLog  # noqa: PLC0415 (see above)

    log = WebhookLog(
        cluster=cluster_of(settings),
        append_timeout_s=settings.append_timeout_s,
        placement=Placement(providers_of(sources_of(settings)), settings.user_prefix),
        clock=now_ms,
    )
    await log.start()
    return log
