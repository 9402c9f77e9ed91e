"""Forgetting instances: Postgres says which there are, their owners delete them.

Those about a user who was wiped, whatever they do; and those that are past their retention.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.request_ids import ulid_source
from headwater.gateway.settings import Settings
from headwater.processors.wipes import ForgetParams
from headwater.projections.deliveries.plan import DELIVERIES
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.projector.offsets import next_offsets
from headwater.projections.workflows.about_users import About, about, wiped_partitions
from headwater.projections.workflows.expired import Expired, Expiry, PruneCursor, expired
from headwater.projections.workflows.history import PROJECTION
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import Command, DeleteInstance, TerminateRun
from headwater.schemas.topics import EFFECTS, WORKFLOW_HISTORY
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.offsets import Offsets
from headwater.streams.workflows.client import Addressed, WorkflowClient
from headwater.streams.workflows.erasing import erase_deleted

#: How often it is looked whether others are as far.
_LOOK_EVERY_S: Final = 0.2
_OUTCOME_WITHIN_S: Final = 15.0
#: Commands of one call.
_TOGETHER: Final = 100
#: In place of a partition where all of them are counted.
_ALL: Final = -1

#: How far somebody is, by partition.
_Reached: TypeAlias = Mapping[int, int]


class Forgetting:
    """Ends and deletes instances, and has the log forget them."""

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

    async def settle(self, wipe: ForgetParams) -> int:
        """Waits until all that came of wiped deliveries is known; returns when that was."""
        await _reached({_ALL: wipe.partitions}, lambda: self._wiped(wipe))
        ends = await self._ends(EFFECTS)
        await _reached(ends, lambda: self._carried_out(ends))
        await _reached(ends, lambda: next_offsets(self._reader, DELIVERIES.name, EFFECTS))
        until_ms = self._clock()
        histories = await self._ends(WORKFLOW_HISTORY)
        await _reached(histories, lambda: next_offsets(self._reader, PROJECTION, WORKFLOW_HISTORY))
        return until_ms

    async def delete(self, wipe: ForgetParams, until_ms: int) -> int:
        """Ends and deletes the instances about the user, until Postgres knows of none."""
        await self._connect()
        deleted: set[tuple[str, str]] = set()
        while found := [each async for each in self._about(wipe, until_ms)]:
            for at in range(0, len(found), _TOGETHER):
                some = found[at : at + _TOGETHER]
                outcomes = await self._client.send_many([_end_of(each) for each in some])
                deleted |= {
                    (each.workflow, each.instance_id)
                    for each, outcome in zip(some, outcomes, strict=True)
                    if each.ended and not outcome.code
                }
            await asyncio.sleep(_LOOK_EVERY_S)
        return len(deleted)

    async def expired(self, asked: Expiry, after: PruneCursor, limit: int) -> Sequence[Expired]:
        """Instances that are past their retention, behind a place."""
        return await expired(self._reader, asked, after, limit)

    async def delete_unchanged(self, page: Sequence[Expired]) -> int:
        """Deletes those to which nothing has happened since Postgres knew them; how many."""
        await self._connect()
        outcomes = await self._client.send_many([_unchanged(each) for each in page])
        return sum(not outcome.code for outcome in outcomes)

    async def erase(self) -> int:
        """Has Kafka forget what the history has of deleted instances."""
        return await erase_deleted(self._cluster, self._appender)

    def _about(self, wipe: ForgetParams, until_ms: int) -> AsyncIterator[About]:
        ordered_at, until = _moment(wipe.ordered_at_ms), _moment(until_ms)
        return about(self._reader, wipe.user_sha256, ordered_at=ordered_at, until=until)

    async def _wiped(self, wipe: ForgetParams) -> _Reached:
        done = await wiped_partitions(self._reader, wipe.user_sha256, wipe.ordered_at_ms)
        return {_ALL: done}

    async def _ends(self, topic: str) -> dict[int, int]:
        count = await self._appender.partitions(topic)
        return {each: (await self._starters.ends([topic], each))[topic] for each in range(count)}

    async def _carried_out(self, ends: _Reached) -> _Reached:
        return {each: (await self._starters.committed([EFFECTS], each))[EFFECTS] for each in ends}

    async def _connect(self) -> None:
        if not self._connected:
            await self._client.start()
            self._connected = True
        for _ in range(round(_OUTCOME_WITHIN_S / _LOOK_EVERY_S)):
            if self._client.ready:
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        raise BrokerUnavailable(f"expected Kafka at {self._cluster}, found no connection yet")


async def _reached(ends: _Reached, asked: Callable[[], Awaitable[_Reached]]) -> None:
    """Waits until somebody is where partitions ended."""
    while True:
        found = await asked()
        if all(found.get(partition, 0) >= end for partition, end in ends.items()):
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _end_of(each: About) -> Addressed:
    command: Command = DeleteInstance() if each.ended else TerminateRun("its user was wiped")
    return Addressed(each.workflow, each.instance_id, command)


def _unchanged(each: Expired) -> Addressed:
    since_ms = round(each.updated_at.timestamp() * 1_000)
    return Addressed(each.workflow, each.instance_id, DeleteInstance(since_ms))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
