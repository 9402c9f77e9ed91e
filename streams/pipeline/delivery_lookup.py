"""Read deliveries of the topic `webhooks` by position, wherever they are by now."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_records_at
from headwater.streams.kafka.records import Incoming

#: Number of partitions before each growth, and the ends of `webhooks` then, the oldest first.
Growths: TypeAlias = Sequence[tuple[int, Sequence[int]]]
ReadGrowths: TypeAlias = Callable[[], Awaitable[Growths]]


async def no_growths() -> Growths:
    """Return nothing, for topics that never got more partitions."""
    return ()


async def read_deliveries_at(
    cluster: Cluster,
    count: int,
    growths: ReadGrowths,
    positions: Collection[tuple[int, int]],
    *,
    within_s: float | None = None,
) -> dict[tuple[int, int], Incoming]:
    """Return records of deliveries by position.

    If the topics have got more partitions since, a delivery may be in another one, at the same
    offset (`growth_routes`).

    Args:
        cluster: The cluster.
        count: Number of partitions today; 0 if it is not known.
        growths: Returns how the topics have grown; called only if a record is missing.
        positions: Partitions and offsets.
        within_s: Limit of each of the two lookups in seconds.

    Raises:
        BrokerUnavailable: No broker answered in time.
        StoreUnavailable: It is not known how the topics have grown.
    """
    read = partial(read_records_at, cluster, WEBHOOKS, within_s=within_s)
    records = dict(await read(positions))
    missing = [position for position in positions if position not in records]
    if missing:
        known = await growths()
        moved = {
            (target, position[1]): position
            for position in missing
            for target in targets_of(position, known, count)
        }
        if moved:
            found = await read(list(moved))
            records |= {moved[position]: record for position, record in found.items()}
    return records


def targets_of(position: tuple[int, int], growths: Growths, count: int) -> Iterator[int]:
    """Yield the partitions of which one may have the delivery of a position by now."""
    partition, offset = position
    for before, ends in growths:
        if partition < before and offset < ends[partition]:
            yield from (n for n in range(partition % before, count, before) if n != partition)
            return
