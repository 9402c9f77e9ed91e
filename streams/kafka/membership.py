"""Membership of the house: who reads what, told by Kafka's own consumer groups.

Theory of operation. Every part of the house holds one member of the group `headwater-members`,
which is assigned no partition. With its request to join, a member announces what it reads; the
group's leader finds what is common to all (`schemas.schema_versions`), and each member gets that
with its assignment. So whenever somebody joins, leaves or is lost, all learn it in one rebalance,
which stops nothing else, and there is no topic and no heartbeat of our own.

Before anything is known a process writes the oldest forms, which everybody reads; while the broker
is away it keeps the last known ones. A part joins before it writes, but for the gateway, which
takes deliveries at once. The member has a thread of its own, so it is there whatever loop the part
runs, and however long one of its turns takes.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NoReturn

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka.errors import KafkaError
from typing_extensions import override

from headwater.schemas.codec import set_write_versions
from headwater.schemas.schema_versions import (
    OLDEST_VERSIONS,
    READABLE_VERSIONS,
    Announcement,
    SchemaVersion,
    common_versions,
    parse_announcement,
    parse_versions,
)
from headwater.schemas.topics import WORKFLOW_REPLIES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

GROUP: Final = "headwater-members"
#: A group has to be subscribed to something; nobody is assigned any of it.
_SUBSCRIBED: Final = WORKFLOW_REPLIES
_VERSION: Final = 0
#: Whoever joins waits for members that were killed: the shortest that brokers allow by default.
_SESSION_MS: Final = 6_000
#: aiokafka ends a membership that polls no records, and this one never does.
_POLL_MAX_MS: Final = 2**31 - 1
_POLL_MS: Final = 1_000
_JOIN_LOOK_S: Final = 0.05
_STOP_S: Final = 5.0


class _Assignor(AbstractPartitionAssignor):
    """Assigns forms in place of partitions."""

    name: Final = "headwater-forms"

    def __init__(
        self, announcement: Announcement, learnt: Callable[[Mapping[str, SchemaVersion]], None]
    ) -> None:
        self._announcement = msgspec.json.encode(announcement)
        self._learnt = learnt

    @override
    def metadata(  # type: ignore[override] # aiokafka calls it on what it was given
        self, topics: Iterable[str]
    ) -> ConsumerProtocolMemberMetadata:
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), self._announcement)

    @override
    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        forms = common_versions(
            [parse_announcement(each.user_data or b"") for each in members.values()]
        )
        data = msgspec.json.encode(forms)
        return {member: ConsumerProtocolMemberAssignment(_VERSION, [], data) for member in members}

    @override
    def on_assignment(  # type: ignore[override]
        self, assignment: ConsumerProtocolMemberAssignment
    ) -> None:
        forms = parse_versions(assignment.user_data or b"")
        if forms is not None:
            self._learnt(forms)


class Membership:
    """The membership of this process.

    Shape:  member names it in others' logs: the part, and where it runs. `learnt` is called in a
            thread, with the forms, whenever these are assigned.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        member: str,
        reads: Mapping[str, int] = READABLE_VERSIONS,
        learnt: Callable[[Mapping[str, SchemaVersion]], None] = set_write_versions,
    ) -> None:
        self._cluster = cluster
        self._reads = dict(reads)
        self._assignor = _Assignor(Announcement(member, self._reads), self._learn)
        self._learnt = learnt
        self._known: Mapping[str, SchemaVersion] = {}
        self._started = False
        self._joined = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        """Joins in the background; Kafka may be away, now or later."""
        if not self._started:
            self._started = True
            self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Joins, and waits until the forms are known; tells whether they are."""
        self.start()
        return self._joined.wait(timeout_s)

    async def joined(self) -> None:
        """Joins, and waits until the forms are known; may be cancelled."""
        self.start()
        while not self._joined.is_set():  # noqa: ASYNC110, an event of another thread
            await asyncio.sleep(_JOIN_LOOK_S)

    def stop(self) -> None:
        """Leaves, so that nobody waits for what this process reads."""
        if not self._started:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(_STOP_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _learn(self, forms: Mapping[str, SchemaVersion]) -> None:
        held_back = {
            name: form
            for name, form in forms.items()
            if form.version < self._reads.get(name, form.version)
        }
        for name, form in sorted(held_back.items()):
            if self._known.get(name) != form:
                log.info("%s is written as version %d for %s", name, form.version, form.behind)
        if self._known and not held_back and forms != self._known:
            log.info("all members read what this release writes")
        self._known = forms
        self._learnt(forms)
        self._joined.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._hold())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _hold(self) -> None:
        retrying = Retrying(log, "waiting for Kafka to learn what the other members read")
        while True:
            consumer = AIOKafkaConsumer(
                **self._cluster.options(),
                group_id=GROUP,
                client_id=GROUP,
                enable_auto_commit=False,
                partition_assignment_strategy=(self._assignor,),
                session_timeout_ms=_SESSION_MS,
                heartbeat_interval_ms=_SESSION_MS // 10,
                rebalance_timeout_ms=_SESSION_MS,
                max_poll_interval_ms=_POLL_MAX_MS,
            )
            consumer.subscribe([_SUBSCRIBED])
            try:
                await consumer.start()
                retrying.succeeded()
                await _poll(consumer)
            except Exception as error:  # noqa: BLE001, whatever it was: a lost member is forgotten
                failure = error
            finally:
                with contextlib.suppress(KafkaError, OSError):
                    await consumer.stop()
            await retrying.failed(failure)


async def _poll(consumer: AIOKafkaConsumer) -> NoReturn:
    """Waits for what ends a membership, which itself goes on in the background."""
    while True:
        await consumer.getmany(timeout_ms=_POLL_MS)


@contextlib.contextmanager
def member_of_house(cluster: Cluster, member: str) -> Iterator[Membership]:
    """A membership that ends with the body, which begins it when it is ready to."""
    set_write_versions(OLDEST_VERSIONS)
    membership = Membership(cluster=cluster, member=member)
    try:
        yield membership
    finally:
        membership.stop()
