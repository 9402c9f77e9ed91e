"""The world of the house's own workflows: adapters for their ports, made when they are first used.

Most workers serve workflows that need none of it, and should not wait for its libraries.
"""

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from headwater.gateway.blobs.choice import blobs_at
from headwater.gateway.blobs.store import Blobs
from headwater.gateway.commands.options import dsn_of
from headwater.gateway.settings import Settings
from headwater.gateway.terra.client import Terra
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from headwater.gateway.house.deliveries_again import DeliveriesAgain
    from headwater.gateway.house.forgetting import Forgetting
    from headwater.projections.deliveries.queries import Reader
    from headwater.streams.pipeline.webhook_log import WebhookLog

#: How often, and how far apart, is looked whether Kafka is connected.
_LOOKS: Final = 100
_LOOK_S: Final = 0.1
#: Numbers are drawn so finely.
_DRAWN: Final = 1 << 32


class World:
    """What the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._terra: Terra | None = None
        self._reader: Reader | None = None
        self._replays: DeliveriesAgain | None = None
        self._forgetting: Forgetting | None = None
        self._blobs: Blobs | None = None
        self._log: WebhookLog | None = None

    async def terra(self) -> Terra:
        """Terra."""
        if self._terra is None:
            self._terra = Terra(
                self._settings.terra,
                draw=lambda: secrets.randbelow(_DRAWN) / _DRAWN,
                wall_s=lambda: now_ms() / 1_000,
            )
        return self._terra

    async def replays(self) -> "DeliveriesAgain":
        """Deliveries to replay, in Postgres and Kafka."""
        if self._replays is None:
            from headwater.gateway.house.deliveries_again import DeliveriesAgain  # noqa: PLC0415 (see above)

            self._replays = DeliveriesAgain(await self.connections(), self._settings)
        return self._replays

    async def forgetting(self) -> "Forgetting":
        """Instances that are to be forgotten, or are kept no longer."""
        if self._forgetting is None:
            from headwater.gateway.house.forgetting import Forgetting  # noqa: PLC0415 (see above)

            self._forgetting = Forgetting(await self.connections(), self._settings, now_ms)
        return self._forgetting

    async def connections(self) -> "Reader":
        """The connections in Postgres."""
        if self._reader is None:
            from headwater.projections.deliveries.queries import Reader  # noqa: PLC0415 (see above)

            self._reader = await Reader(dsn_of(self._settings)).open()
        return self._reader

    async def blobs(self) -> Blobs:
        """The blobs."""
        if self._blobs is None:
            self._blobs = blobs_at(self._settings.blobs_at)
        return self._blobs

    async def facts(self) -> "WebhookLog":
        """The log of deliveries, once it is connected.

        Errors: BrokerUnavailable.
        """
        if self._log is None:
            self._log = await _started_log(self._settings)
        for _ in range(_LOOKS):
            if self._log.ready:
                break
            await asyncio.sleep(_LOOK_S)
        return self._log


async def _started_log(settings: Settings) -> "WebhookLog":
    from headwater.gateway.commands.cluster import cluster_of  # noqa: PLC0415 (see above)
    from headwater.gateway.sources import sources_of  # noqa: PLC0415 (see above)
    from headwater.processors.providers.placement import Placement  # noqa: PLC0415 (see above)
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
