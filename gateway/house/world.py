"""The world of the house's own workflows: adapters for their ports, made when they are first used.

Most workers serve workflows that need none of it, and should not wait for its libraries.
"""

import secrets
from typing import TYPE_CHECKING, Final

from headwater.gateway.commands.options import dsn_of
from headwater.gateway.settings import Settings
from headwater.gateway.terra.client import Terra
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from headwater.gateway.house.deliveries_again import DeliveriesAgain
    from headwater.projections.deliveries.queries import Reader

#: Numbers are drawn so finely.
_DRAWN: Final = 1 << 32


class World:
    """What the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._terra: Terra | None = None
        self._reader: Reader | None = None
        self._replays: DeliveriesAgain | None = None

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

    async def connections(self) -> "Reader":
        """The connections in Postgres."""
        if self._reader is None:
            from headwater.projections.deliveries.queries import Reader  # noqa: PLC0415 (see above)

            self._reader = await Reader(dsn_of(self._settings)).open()
        return self._reader
