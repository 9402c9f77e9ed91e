"""Deliveries to replay: Postgres says which there are, Kafka has them."""

import re
from collections.abc import Sequence
from typing import Final

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.settings import Settings
from headwater.projections.deliveries.replaying import Matched, ReplayCursor, Selection
from headwater.projections.deliveries.replaying import page as page_of
from headwater.projections.postgres.reader import PooledReader
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.pipeline.delivery_replay import DeliveryReplay, DeliveryToReplay

_POSITION: Final = re.compile(rf"{WEBHOOKS}/([0-9]+)@([0-9]+)")
#: Ends of deliveries whose effects on workflows were decided.
_HAD_EFFECTS: Final = ("processed", "skipped")


class DeliveriesAgain:
    """Deliveries that are appended once more."""

    def __init__(self, reader: PooledReader, settings: Settings) -> None:
        self._reader = reader
        self._log = DeliveryReplay(cluster_of(settings))

    async def page(
        self, selection: Selection, after: ReplayCursor, limit: int
    ) -> Sequence[Matched]:
        """Deliveries of a selection, behind a place."""
        return await page_of(self._reader, selection, after, limit)

    async def again(self, page: Sequence[Matched], replay_id: str) -> int:
        """Appends them again; returns of how many the log has the bytes."""
        return await self._log.replay([_again(each) for each in page], replay_id)


def _again(found: Matched) -> DeliveryToReplay:
    places = [(found.partition, found.offset)]
    read_at = _POSITION.fullmatch(found.position)
    if read_at is not None:
        places.append((int(read_at[1]), int(read_at[2])))
    return DeliveryToReplay(found.event_id, tuple(places), found.status in _HAD_EFFECTS)
