"""Dependencies of the built-in workflows, created on first use."""

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from headwater.gateway.builtin.blobs.folder import blobs_at
from headwater.gateway.builtin.blobs.store import Blobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.settings import Settings
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.gateway.builtin.bulk_operations import DeliveryReplays, InstanceDeletion
    from headwater.gateway.builtin.endpoint_replay import EndpointReplays
    from headwater.gateway.builtin.endpoint_sender import EndpointSender
    from headwater.projections.deliveries.queries import Reader
    from headwater.projections.deliveries.users import Connection
    from headwater.streams.kafka.endpoint_log import EndpointLog
    from headwater.streams.pipeline.request_logs import AuditLog
    from headwater.streams.pipeline.webhook_log import WebhookLog

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
        self._endpoints: EndpointLog | None = None
        self._endpoint_sender: EndpointSender | None = None
        self._endpoint_replays: EndpointReplays | None = None

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

            self._replays = DeliveryReplays(await self.connections(), self._settings, now_ms)
        return self._replays

    async def instance_deletion(self) -> "InstanceDeletion":
        """Return the deletion of instances."""
        if self._instance_deletion is None:
            from headwater.gateway.builtin.bulk_operations import InstanceDeletion  # noqa: PLC0415 (see above)

            self._instance_deletion = InstanceDeletion(
                await self.connections(), self._settings, now_ms
            )
        return self._instance_deletion

    async def endpoint_sender(self) -> "EndpointSender":
        """Return the sender of notifications."""
        if self._endpoint_sender is None:
            from headwater.gateway.builtin.endpoint_requests import EndpointRequests  # noqa: PLC0415 (see above)
            from headwater.gateway.builtin.endpoint_sender import EndpointSender  # noqa: PLC0415 (see above)
            from headwater.gateway.client.requests import ulid_source  # noqa: PLC0415 (see above)

            endpoints, audit = self._endpoint_log(), await self._audit_log()
            self._endpoint_sender = EndpointSender(
                endpoints=endpoints,
                requests=EndpointRequests(
                    self._settings.endpoint_networks, loopback=self._settings.loopback_endpoints
                ),
                reader=self.connections,
                audit=audit.append,
                project=self._settings.project,
                clock=now_ms,
                new_id=ulid_source(now_ms, secrets.token_bytes),
            )
        return self._endpoint_sender

    async def endpoint_replays(self) -> "EndpointReplays":
        """Return the replays to endpoints."""
        if self._endpoint_replays is None:
            from headwater.gateway.builtin.endpoint_replay import replays_of  # noqa: PLC0415 (see above)

            self._endpoint_replays = replays_of(self._settings, self._endpoint_log())
        return self._endpoint_replays

    def _endpoint_log(self) -> "EndpointLog":
        if self._endpoints is None:
            from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (see above)
            from headwater.streams.kafka.endpoint_log import EndpointLog  # noqa: PLC0415 (see above)

            cluster = cluster_of(self._settings)
            self._endpoints = EndpointLog(cluster=cluster, client_id="headwater-notifications")
        return self._endpoints

    async def _audit_log(self) -> "AuditLog":
        from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (see above)
        from headwater.streams.pipeline.request_logs import AuditLog  # noqa: PLC0415 (see above)

        audit = AuditLog(
            cluster=cluster_of(self._settings), append_timeout_s=self._settings.append_timeout_s
        )
        await audit.start()
        return audit

    async def connections(self) -> "Reader":
        """Return the Postgres reader."""
        if self._reader is None:
            from headwater.projections.deliveries.queries import Reader  # noqa: PLC0415 (see above)

            self._reader = await Reader(dsn_of(self._settings)).open()
        return self._reader

    async def connections_of(self, user_id: str) -> "Sequence[Connection]":
        """Return the connections of a user."""
        from headwater.projections.deliveries.users import connections_of  # noqa: PLC0415 (see above)

        return await connections_of(await self.connections(), user_id)

    async def lab_status(self, upload_id: str) -> str | None:
        """Return the status of an uploaded lab report; None if there is no such upload."""
        from headwater.projections.deliveries.users import lab_status  # noqa: PLC0415 (see above)

        return await lab_status(await self.connections(), upload_id)

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
