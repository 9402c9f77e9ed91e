"""Members of the system: they agree on schema versions; their state, and the cluster's.

Every process has one member in the group `headwater-members`, which is assigned no partition. With
its request to join, a member announces the schema versions it reads. The group's leader computes
the versions common to all (`schemas.codec`), and members get them with their assignment. So
whenever a member joins, leaves or is lost, all learn the versions in one rebalance, which
interrupts nothing else. There is no topic and no heartbeat of our own.

Until a process knows the versions it writes the oldest, which all releases read; while the broker
is unavailable it keeps the last known ones. A process joins before it writes, except for the
gateway, which accepts deliveries at once. The member has a thread of its own, so that it does not
depend on the process's event loop, or on how long one of its iterations takes.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError, for_code
from typing_extensions import override

from headwater.schemas.codec import (
    OLDEST_VERSIONS,
    READABLE_VERSIONS,
    Announcement,
    SchemaVersion,
    common_versions,
    parse_announcement,
    parse_versions,
    set_write_versions,
)
from headwater.schemas.topics import TOPICS, WORKFLOW_REPLIES
from headwater.streams.kafka.cluster import Cluster, admin_client, standalone_consumer
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger(__name__)

GROUP: Final = "headwater-members"
#: Prefix of the names of workflow workers.
WORKERS: Final = "workflows "
#: A group has to subscribe to a topic; no member is assigned any of it.
_SUBSCRIBED: Final = WORKFLOW_REPLIES
_VERSION: Final = 0
#: Joining waits for members that were killed, so this is the shortest session that brokers allow by
#: default.
_SESSION_MS: Final = 6_000
_HEARTBEAT_MS: Final = 2_000
#: A process that joins waits for the next heartbeat of all members. Those of a system are often
#: started together, so members send more heartbeats for some time after each rebalance.
_JOINING_S: Final = 20.0
_JOINING_HEARTBEAT_MS: Final = 600
#: aiokafka ends a membership that polls no records, and this one never does.
_POLL_MAX_MS: Final = 2**31 - 1
_JOIN_LOOK_S: Final = 0.05
_STOP_S: Final = 5.0


class _Assignor(AbstractPartitionAssignor):
    """Assigns schema versions instead of partitions."""

    name: Final = "headwater-forms"

    def __init__(
        self, announcement: Announcement, on_versions: Callable[[Mapping[str, SchemaVersion]], None]
    ) -> None:
        self._announcement = msgspec.json.encode(announcement)
        self._on_versions = on_versions

    @override
    def metadata(  # type: ignore[override] # aiokafka calls it on the instance
        self, topics: Iterable[str]
    ) -> ConsumerProtocolMemberMetadata:
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), self._announcement)

    @override
    def assign(  # type: ignore[override]
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        forms = common_versions(
            [parse_announcement(metadata.user_data or b"") for metadata in members.values()]
        )
        data = msgspec.json.encode(forms)
        return {member: ConsumerProtocolMemberAssignment(_VERSION, [], data) for member in members}

    @override
    def on_assignment(  # type: ignore[override]
        self, assignment: ConsumerProtocolMemberAssignment
    ) -> None:
        forms = parse_versions(assignment.user_data or b"")
        if forms is not None:
            self._on_versions(forms)


class Membership:
    """The membership of this process.

    Args:
        cluster: The cluster.
        member: Names it in others' logs: the kind of process, and its host.
        reads: Schema versions that this process reads.
        on_versions: Called in a thread, with the versions to write, whenever these are assigned.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        member: str,
        reads: Mapping[str, int] = READABLE_VERSIONS,
        on_versions: Callable[[Mapping[str, SchemaVersion]], None] = set_write_versions,
    ) -> None:
        self._cluster = cluster
        self._reads = dict(reads)
        self._assignor = _Assignor(Announcement(member, self._reads), self._learn)
        self._on_versions = on_versions
        self._known: Mapping[str, SchemaVersion] = {}
        self._assigned_at_s = 0.0
        self._started = False
        self._joined = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        """Join in the background; Kafka may be unavailable now or later."""
        if not self._started:
            self._started = True
            self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Join, and wait until the versions are known; return whether they are."""
        self.start()
        return self._joined.wait(timeout_s)

    async def joined(self) -> None:
        """Join, and wait until the versions are known; may be cancelled."""
        self.start()
        while not self._joined.is_set():  # noqa: ASYNC110, an event of another thread
            await asyncio.sleep(_JOIN_LOOK_S)

    def stop(self) -> None:
        """Leave the group, so that the others no longer write for this process."""
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
        self._known, self._assigned_at_s = forms, self._loop.time()
        self._on_versions(forms)
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
                heartbeat_interval_ms=_HEARTBEAT_MS,
                rebalance_timeout_ms=_SESSION_MS,
                max_poll_interval_ms=_POLL_MAX_MS,
                fetch_max_wait_ms=IDLE_FETCH_MS,
            )
            consumer.subscribe([_SUBSCRIBED])
            try:
                await consumer.start()
                retrying.succeeded()
                await self._poll(consumer)
            except Exception as error:  # noqa: BLE001, any error: a lost member is excluded
                failure = error
            finally:
                with contextlib.suppress(KafkaError, OSError):
                    await consumer.stop()
            await retrying.failed(failure)

    async def _poll(self, consumer: AIOKafkaConsumer) -> NoReturn:
        """Poll until an error ends the membership; heartbeats run in the background."""
        coordinator: Any = consumer._coordinator  # noqa: SLF001 (there is no public way)
        while True:
            is_joining = self._loop.time() < self._assigned_at_s + _JOINING_S
            await consumer.getmany(
                timeout_ms=_JOINING_HEARTBEAT_MS if is_joining else _HEARTBEAT_MS
            )
            # During a join, its generation is over: aiokafka stops its own heartbeats for that.
            heartbeats = coordinator._heartbeat_task  # noqa: SLF001
            is_member = heartbeats is not None and not heartbeats.done()
            if is_joining and is_member and not coordinator._rejoin_needed_fut.done():  # noqa: SLF001
                await coordinator._do_heartbeat()  # noqa: SLF001


@contextlib.contextmanager
def system_membership(cluster: Cluster, member: str) -> Iterator[Membership]:
    """Yield a membership that ends with the body; the body starts it when it is ready."""
    set_write_versions(OLDEST_VERSIONS)
    membership = Membership(cluster=cluster, member=member)
    try:
        yield membership
    finally:
        membership.stop()


# -- state of the cluster

_OURS: Final = frozenset(topic.name for topic in TOPICS)


class Member(NamedTuple):
    """A running process: its name, and the topics of which it reads older schema versions only."""

    name: str
    older: tuple[str, ...]


class ClusterState(NamedTuple):
    """Members, end offsets and lag.

    Attributes:
        members: The running processes.
        ends: End offsets, by topic and partition.
        behind: Number of records of our topics that consumer groups have yet to read, by group.
    """

    members: tuple[Member, ...]
    ends: Mapping[tuple[str, int], int]
    behind: Mapping[str, int]


async def inspect_cluster(cluster: Cluster) -> ClusterState:
    """Query the state of a cluster once.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin, standalone_consumer(cluster) as consumer:
        members = await _members(admin)
        ends = await _ends(admin, consumer)
        return ClusterState(members, ends, await _lags(admin, ends))


async def running_workers(cluster: Cluster) -> list[str]:
    """Return the names of the workflow workers that run, as members of the system.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    async with admin_client(cluster) as admin:
        members = await _members(admin)
    return [member.name for member in members if member.name.startswith(WORKERS)]


#: How long to wait for the end of a rebalance: longer than the session of a member that was killed.
_REBALANCED_S: Final = 20.0
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")
_RETRY_S: Final = 0.1


async def _members(admin: AIOKafkaAdminClient) -> tuple[Member, ...]:
    try:
        described = await _described(admin)
    except GroupCoordinatorNotAvailableError:  # a cluster that has had no group yet
        return ()
    running = []
    for _, _, _, metadata, *_ in described:
        announcement = parse_announcement(
            ConsumerProtocolMemberMetadata.decode(metadata).user_data or b""
        )
        older = sorted(
            name
            for name in READABLE_VERSIONS
            if announcement.reads.get(name, 0) < READABLE_VERSIONS[name]
        )
        running.append(Member(announcement.member, tuple(older)))
    return tuple(sorted(running))


async def _described(admin: AIOKafkaAdminClient) -> Sequence[Any]:
    """Return Kafka's descriptions of the members, which have no metadata during a rebalance.

    Raises:
        KafkaError: The rebalance did not end in time.
    """
    found = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REBALANCED_S):
            while True:
                (response,) = await admin.describe_consumer_groups([GROUP])
                ((code, _, state, _, _, members, *_),) = response.groups  # type: ignore[attr-defined]
                if not code and state not in _REBALANCING:
                    return list(members)
                found = for_code(code).__name__ if code else state
                await asyncio.sleep(_RETRY_S)
    raise KafkaError(
        f"expected the group {GROUP} to be stable within {_REBALANCED_S:g} s, found: {found}"
    )


async def _ends(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer
) -> dict[tuple[str, int], int]:
    present = _OURS & set(await admin.list_topics())
    partitions = [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in await admin.describe_topics(sorted(present))
        for partition in topic["partitions"]
    ]
    ends = await consumer.end_offsets(partitions)
    return {(partition.topic, partition.partition): end for partition, end in ends.items()}


async def _lags(admin: AIOKafkaAdminClient, ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
    lags = {}
    partitions = [TopicPartition(*partition) for partition in ends]
    for group, *_ in await admin.list_consumer_groups():
        committed = await admin.list_consumer_group_offsets(group, partitions=partitions)
        # Offset -1: the group has read nothing of it.
        ours = {
            (partition.topic, partition.partition): position.offset
            for partition, position in committed.items()
            if position.offset >= 0
        }
        if ours:
            lags[group] = sum(max(0, ends[partition] - read) for partition, read in ours.items())
    return lags
