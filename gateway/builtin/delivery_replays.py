"""Select deliveries in Postgres, and append them to Kafka again."""

import re
from collections.abc import Sequence
from typing import Final

from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.deliveries.replaying import Matched, ReplayCursor, Selection
from headwater.projections.deliveries.replaying import page as page_of
from headwater.projections.postgres.reader import PooledReader
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.pipeline.delivery_replay import DeliveryReplay, DeliveryToReplay

_POSITION: Final = re.compile(rf"{WEBHOOKS}/([0-9]+)@([0-9]+)")
#: Outcomes of deliveries whose effects on workflows were decided.
_HAD_EFFECTS: Final = ("processed", "skipped")


class DeliveryReplays:
    """Replays deliveries."""

    def __init__(self, reader: PooledReader, settings: Settings) -> None:
        self._reader = reader
        self._log = DeliveryReplay(cluster_of(settings))

    async def page(
        self, selection: Selection, after: ReplayCursor, limit: int
    ) -> Sequence[Matched]:
        """Return a page of a selection, after a cursor."""
        return await page_of(self._reader, selection, after, limit)

    async def append(self, page: Sequence[Matched], replay_id: str) -> int:
        """Append deliveries again; return how many of them the log still had."""
        return await self._log.replay([_replay_of(row) for row in page], replay_id)


def _replay_of(row: Matched) -> DeliveryToReplay:
    positions = [(row.partition, row.offset)]
    read_at = _POSITION.fullmatch(row.position)
    if read_at is not None:
        positions.append((int(read_at[1]), int(read_at[2])))
    return DeliveryToReplay(row.event_id, tuple(positions), row.status in _HAD_EFFECTS)
