"""Replay deliveries and delete instances: select them in Postgres, and append to Kafka."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from headwater.gateway.builtin.instances import ReplayParams
from headwater.gateway.client.requests import ulid_source
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.processors.wipes import ForgetParams
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.deliveries.replaying import (
    Matched,
    ReplayCursor,
    Selection,
    page,
    user_with_digest,
)
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.projector.store import next_offsets
from headwater.projections.workflows.history import PROJECTION
from headwater.projections.workflows.instances import (
    About,
    Expired,
    Expiry,
    PruneCursor,
    about,
    expired,
    wiped_partitions,
)
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import Command, DeleteInstance, TerminateRun
from headwater.schemas.topics import EFFECTS, WORKFLOW_HISTORY
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.readers import Offsets
from headwater.streams.pipeline.reprocessing import DeadLetters, DeliveryToReplay, known_positions
from headwater.streams.workflows.client import Addressed, WorkflowClient
from headwater.streams.workflows.history_topic import erase_deleted

_SELECTORS: Final = Selection.__struct_fields__
#: Outcomes of deliveries with decided effects on workflows.
_HAD_EFFECTS: Final = ("processed", "skipped")


class DeliveryReplays:
    """Replays deliveries."""

    def __init__(self, reader: PooledReader, settings: Settings, clock: Callable[[], int]) -> None:
        self._reader = reader
        self._log = DeadLetters(cluster=cluster_of(settings), clock=clock)
        #: The user of the last page, by digest: finding one may take seconds.
        self._user: tuple[str, str] | None = None

    async def replay_page(
        self, params: ReplayParams, after: Sequence[str], size: int, replay_id: str
    ) -> tuple[Sequence[Matched], int]:
        """Append a page of deliveries again; return them, and how many the log still had."""
        user_id = None
        if params.user_sha256 is not None:
            user_id = await self._user_with(params.user_sha256)
            if user_id is None:
                return (), 0
        selection = Selection(**{name: getattr(params, name) for name in _SELECTORS})
        rows = await page(self._reader, selection, user_id, ReplayCursor(*after), size)
        deliveries = [_replay_of(row) for row in rows]
        return rows, len(await self._log.reprocess(deliveries, replay_id))

    async def _user_with(self, user_sha256: str) -> str | None:
        if self._user is None or self._user[0] != user_sha256:
            user_id = await user_with_digest(self._reader, user_sha256)
            self._user = None if user_id is None else (user_sha256, user_id)
        return None if self._user is None else self._user[1]


def _replay_of(row: Matched) -> DeliveryToReplay:
    positions = known_positions(row.partition, row.offset, row.position)
    return DeliveryToReplay(row.event_id, positions, row.status in _HAD_EFFECTS)


# -- deletion

#: Seconds between checks of another process's progress.
_POLL_EVERY_S: Final = 0.2
_OUTCOME_WITHIN_S: Final = 15.0
#: Commands of one batch.
_BATCH: Final = 100
#: Key for a count of partitions, instead of a partition.
_ALL: Final = -1

#: Progress of a reader: next offset by partition.
_Offsets: TypeAlias = Mapping[int, int]


class InstanceDeletion:
    """Terminates and deletes instances, and erases their history.

    The instances are all those about a wiped user, running or not, or those past their retention.
    """

    def __init__(self, reader: PooledReader, settings: Settings, clock: Callable[[], int]) -> None:
        cluster = cluster_of(settings)
        self._reader = reader
        self._clock = clock
        self._cluster = cluster
        self._appender = Appender(cluster=cluster, client_id="headwater-forgetting")
        self._starters = Offsets(cluster, f"{settings.app_id}-effects")
        self._client = WorkflowClient(
            cluster=cluster,
            client_id=f"{socket.gethostname()}-{os.getpid()}-forgetting",
            timeout_s=_OUTCOME_WITHIN_S,
            clock=clock,
            new_id=ulid_source(clock, os.urandom),
        )
        self._connected = False

    async def wait_until_settled(self, wipe: ForgetParams) -> int:
        """Wait until Postgres has all instances that wiped deliveries started.

        Returns:
            The time until which instances may have started, in Unix milliseconds.
        """
        await _wait_for({_ALL: wipe.partitions}, lambda: self._wiped(wipe))
        ends = await self._ends(EFFECTS)
        await _wait_for(ends, lambda: self._carried_out(ends))
        await _wait_for(ends, lambda: next_offsets(self._reader, DELIVERIES.name, EFFECTS))
        until_ms = self._clock()
        histories = await self._ends(WORKFLOW_HISTORY)
        await _wait_for(histories, lambda: next_offsets(self._reader, PROJECTION, WORKFLOW_HISTORY))
        return until_ms

    async def delete(self, wipe: ForgetParams, until_ms: int) -> int:
        """Terminate and delete the instances about the user until Postgres has none.

        Returns:
            The number of deleted instances.
        """
        await self._connect()
        deleted: set[tuple[str, str]] = set()
        while instances := [instance async for instance in self._about(wipe, until_ms)]:
            for at in range(0, len(instances), _BATCH):
                batch = instances[at : at + _BATCH]
                outcomes = await self._client.send_many([_deletion_of(one) for one in batch])
                deleted |= {
                    (instance.workflow, instance.instance_id)
                    for instance, outcome in zip(batch, outcomes, strict=True)
                    if instance.ended and not outcome.code
                }
            await asyncio.sleep(_POLL_EVERY_S)
        return len(deleted)

    async def prune_page(
        self, expiry: Expiry, after: Sequence[str], size: int
    ) -> tuple[Sequence[Expired], int]:
        """Delete a page of instances past their retention, unless they have changed since.

        Returns:
            The page, and how many of its instances were deleted.
        """
        rows = await expired(self._reader, expiry, PruneCursor(*after), size)
        if not rows:
            return rows, 0
        await self._connect()
        outcomes = await self._client.send_many([_conditional_deletion_of(row) for row in rows])
        return rows, sum(not outcome.code for outcome in outcomes)

    async def erase(self) -> int:
        """Erase the history of deleted instances by tombstones; return the number of records."""
        return await erase_deleted(self._cluster, self._appender)

    def _about(self, wipe: ForgetParams, until_ms: int) -> AsyncIterator[About]:
        ordered_at, until = _moment(wipe.ordered_at_ms), _moment(until_ms)
        return about(self._reader, wipe.user_sha256, ordered_at=ordered_at, until=until)

    async def _wiped(self, wipe: ForgetParams) -> _Offsets:
        done = await wiped_partitions(self._reader, wipe.user_sha256, wipe.ordered_at_ms)
        return {_ALL: done}

    async def _ends(self, topic: str) -> dict[int, int]:
        count = await self._appender.partitions(topic)
        return {
            partition: (await self._starters.ends([topic], partition))[topic]
            for partition in range(count)
        }

    async def _carried_out(self, ends: _Offsets) -> _Offsets:
        return {
            partition: (await self._starters.committed([EFFECTS], partition))[EFFECTS]
            for partition in ends
        }

    async def _connect(self) -> None:
        if not self._connected:
            await self._client.start()
            self._connected = True
        for _ in range(round(_OUTCOME_WITHIN_S / _POLL_EVERY_S)):
            if self._client.ready:
                return
            await asyncio.sleep(_POLL_EVERY_S)
        raise BrokerUnavailable(f"Kafka at {self._cluster} is not connected")


async def _wait_for(ends: _Offsets, progress: Callable[[], Awaitable[_Offsets]]) -> None:
    """Wait until a reader has reached the ends of partitions."""
    while True:
        offsets = await progress()
        if all(offsets.get(partition, 0) >= end for partition, end in ends.items()):
            return
        await asyncio.sleep(_POLL_EVERY_S)


def _deletion_of(instance: About) -> Addressed:
    command: Command = DeleteInstance() if instance.ended else TerminateRun("its user was wiped")
    return Addressed(instance.workflow, instance.instance_id, command)


def _conditional_deletion_of(instance: Expired) -> Addressed:
    since_ms = round(instance.updated_at.timestamp() * 1_000)
    return Addressed(instance.workflow, instance.instance_id, DeleteInstance(since_ms))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
