"""The topic of graph definitions: followed by whoever runs, shows or deploys graphs.

It is small, and lies in one partition. Everybody folds all of it, and asks Kafka where it ends
before an answer that has to know what was deployed until now.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from headwater.processors.graph.catalogue import Catalogue, Outcome
from headwater.schemas.codec import decode, encode
from headwater.schemas.definitions import GraphDeployed
from headwater.schemas.errors import NotYetReadable, UndecodableRecord, UnknownSchema
from headwater.schemas.newer import readable, why_waits
from headwater.schemas.topics import GRAPH_DEFINITIONS
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.kafka.partition_reader import read_partition
from headwater.streams.kafka.records import Incoming, Outgoing, place_of

log = logging.getLogger(__name__)

_PARTITION: Final = 0
_KEY_BYTES: Final = 16
_STOP_S: Final = 5.0


class DefinitionLog:
    """Follows the topic, and deploys; connects when first used.

    Shape:  new_key gives bytes that no other record has in its key.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        client_id: str,
        new_key: Callable[[], bytes] = lambda: os.urandom(_KEY_BYTES),
    ) -> None:
        self._cluster = cluster
        self._new_key = new_key
        self._offsets = Offsets(cluster, client_id)
        self._appender = Appender(cluster=cluster, client_id=client_id)
        self._reading = asyncio.Lock()
        self._next = 0
        self._outcomes: dict[int, Outcome] = {}
        #: What was read so far.
        self.catalogue = Catalogue()

    async def stop(self) -> None:
        """Disconnects."""
        await self._offsets.stop()
        await self._appender.stop(_STOP_S)

    async def catch_up(self) -> Catalogue:
        """All that was deployed before the call, and perhaps more.

        Errors: BrokerUnavailable; NotYetReadable, for what a newer release has deployed.
        """
        async with self._reading:
            # Asked after the call, by each caller: an answer to an earlier one may be too old.
            ends = await self._offsets.ends([GRAPH_DEFINITIONS], _PARTITION)
            end = ends[GRAPH_DEFINITIONS]
            if end > self._next:
                reading = read_partition(
                    self._cluster, [GRAPH_DEFINITIONS], _PARTITION, start=self._next, end=end
                )
                async for records in reading:
                    self._apply(records)
                self._next = end
        return self.catalogue

    def _apply(self, records: list[Incoming]) -> None:
        known, newer = readable(records)
        for record in known:
            try:
                deployed = decode(record.value, GraphDeployed)
            except (UndecodableRecord, UnknownSchema) as error:
                log.error("%s is no definition: %s", place_of(record), error)  # noqa: TRY400
            else:
                self._outcomes[record.offset] = self.catalogue.apply(deployed)
            self._next = record.offset + 1
        if newer is not None:
            raise NotYetReadable(why_waits(newer))

    async def deploy(self, record: GraphDeployed) -> Outcome:
        """Deploys a definition; says what came of it once it is durable.

        Errors: BrokerUnavailable, when it may have been deployed: to say it again does no harm.
        """
        key = f"{record.name}#{self._new_key().hex()}".encode()
        try:
            sent = await self._appender.send(
                [Outgoing(GRAPH_DEFINITIONS, _PARTITION, key, encode(record))]
            )
            (offset,) = await self._appender.acknowledged(sent)
        except BaseException:
            await self._appender.stop(_STOP_S)
            raise
        await self.catch_up()
        return self._outcomes[offset]
