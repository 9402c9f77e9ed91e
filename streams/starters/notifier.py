"""Have notifications sent: a reader of the logs that they are derived from.

Of all workers, the one that owns partition 0 of the topic `endpoints` reads. It starts an instance
of a built-in workflow for every notification and endpoint, and commits its offsets when all of them
are in the log. After a crash the next reader derives some notifications again, with the same ids,
which changes nothing. Without endpoints and rules, nothing is read.

An endpoint that is new, or enabled again, receives what happens from then on. So a topic that was
not needed before is read from the time at which an endpoint became active.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from headwater.processors.endpoints import SKEW_MS, Endpoint
from headwater.processors.notifications import (
    NOTIFY,
    REACT,
    RULE_TYPES,
    SOURCE,
    WATCHED_TYPES,
    Notification,
    instance_id,
    reacting,
    sending,
)
from headwater.processors.triggers.reactions import reacting_rules
from headwater.processors.triggers.rules import Rule
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import ReplySent
from headwater.schemas.newer import Waiting, newer_schema_message, readable
from headwater.schemas.topics import ENDPOINTS
from headwater.streams.kafka.cluster import Cluster, start_consumer
from headwater.streams.kafka.consumer_groups import Committed, committed_offsets, resume_offset
from headwater.streams.kafka.endpoint_log import EndpointLog
from headwater.streams.kafka.idle_fetches import IDLE_FETCH_MS
from headwater.streams.kafka.records import Incoming
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.truncation import seek_with_epoch
from headwater.streams.ownership.group_member import GroupMember
from headwater.streams.starters.notification_records import notifications_of, topics_of
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

log = logging.getLogger(__name__)

#: How often the endpoints are read.
_ENDPOINTS_S: Final = 2.0
_WATCH_S: Final = 60.0
#: Longer than it takes until a reader, or the next one, knows a new endpoint.
_NEW_MS: Final = 60_000
_POLL_MS: Final = 500
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 1024 * 1024
#: Commands that are sent together; the params of one may have 128 KiB.
_GROUP: Final = 50
_PAUSE_S: Final = 30.0
#: How often offsets are committed of partitions that have no records. Kafka removes an offset that
#: was not committed for a week, unless it is configured otherwise.
_COMMIT_S: Final = 3600.0
_COMMIT_WITHIN_S: Final = 30.0
#: Rules ignore what is older, such as what happened while there was no such rule. Effects of
#: deliveries are kept as long.
_RULES_MAX_AGE_MS: Final = 7 * 24 * 60 * 60 * 1_000


class Interests(NamedTuple):
    """What is needed of the logs.

    Attributes:
        endpoints: The active endpoints.
        rules: The rules about notifications.
    """

    endpoints: tuple[Endpoint, ...] = ()
    rules: tuple[Rule, ...] = ()

    def topics(self) -> dict[str, int | None]:
        """Return the topics to read, and since when, in Unix milliseconds.

        None is from now on: a rule has no time of creation.
        """
        since: dict[str, int | None] = {}
        for rule in self.rules:
            for topic in topics_of(type_ for type_ in RULE_TYPES if rule.concerns(SOURCE, type_)):
                since[topic] = None
        for endpoint in self.endpoints:
            for topic in topics_of(endpoint.created.types, endpoint.created.tables):
                begin_ms = endpoint.active_since_ms - SKEW_MS
                since[topic] = min(since.get(topic) or begin_ms, begin_ms)
        return since

    @property
    def are_watched(self) -> bool:
        """Whether an endpoint takes what no record leads to."""
        return any(not WATCHED_TYPES.isdisjoint(one.created.types) for one in self.endpoints)

    def new(self, now_ms: int) -> dict[str, int | None]:
        """Return the topics of endpoints that became active a moment ago, and since when.

        A reader that did not know them yet may have read further.
        """
        recent = [one for one in self.endpoints if now_ms - one.active_since_ms < _NEW_MS]
        return Interests(tuple(recent)).topics()

    def commands(
        self, notifications: Iterable[Notification], now_ms: int, retries_ms: tuple[int, ...]
    ) -> Iterator[Addressed]:
        """Yield the commands that notifications lead to; their ids are those of the instances."""
        for notification in notifications:
            for endpoint in self.endpoints:
                is_new = notification.at_ms >= endpoint.active_since_ms - SKEW_MS
                if is_new and endpoint.takes(notification):
                    name = instance_id(notification, endpoint.id)
                    start = sending(notification, endpoint.id, retries_ms)
                    yield Addressed(NOTIFY, name, start, name)
            is_recent = now_ms - notification.at_ms < _RULES_MAX_AGE_MS
            if is_recent and reacting_rules(self.rules, notification):
                yield Addressed(REACT, notification.id, reacting(notification), notification.id)


class Notifier:
    """Has notifications sent until it is canceled.

    Args:
        client: Sends commands.
        endpoints: The topic of endpoints.
        rules: The rules about notifications.
        watch: Returns the notifications that no record leads to, and that begin now.
        cluster: The cluster.
        app_id: Begins the names of the consumer groups.
        member: A name that the member keeps over restarts, or None.
        retries_ms: Pauses between attempts to send a notification, in milliseconds.
        clock: Returns Unix milliseconds.
    """

    def __init__(  # noqa: PLR0913 (its dependencies)
        self,
        client: WorkflowClient,
        endpoints: EndpointLog,
        rules: Sequence[Rule],
        watch: Callable[[], Awaitable[Sequence[Notification]]],
        *,
        cluster: Cluster,
        app_id: str,
        member: str | None,
        retries_ms: tuple[int, ...],
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._endpoints = endpoints
        self._interests = Interests((), tuple(rules))
        self._watch = watch
        self._watched_at = 0.0
        self._retries_ms = retries_ms
        self._clock = clock
        self._waiting = Waiting()
        self._is_leader = False
        #: Set at every change of the leadership.
        self._changed = asyncio.Event()
        self._read_endpoints_at = 0.0
        self._committed_at = 0.0
        # A group of its own: only members may commit offsets of a group with members.
        self._options = {
            **cluster.options(),
            "group_id": f"{app_id}-notifications",
            "client_id": f"{app_id}-notifications",
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "fetch_max_wait_ms": IDLE_FETCH_MS,
        }
        self._consumer: AIOKafkaConsumer | None = None
        self._member = GroupMember(
            cluster=cluster,
            group=f"{app_id}-notifier",
            topic=ENDPOINTS,
            member=member,
            client_id=f"{app_id}-notifier",
            rebalances=self,
        )

    async def run(self) -> None:
        """Have notifications sent.

        Raises:
            MemberFenced: Another process joined under the name of this member.
        """
        await self._member.start()
        try:
            await self._member.during(self._lead())
        finally:
            await self._member.stop()
            await self._disconnect()
            await self._endpoints.stop()

    # -- leadership

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Begin to read if partition 0 is among them."""
        self._is_leader = 0 in numbers
        self._changed.set()

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Stop reading. What was read and not committed, the next reader reads again."""
        self._is_leader = False
        self._changed.set()

    async def _lead(self) -> NoReturn:
        reading = Retrying(log, "notifications have to wait", longest_s=_PAUSE_S)
        errors = (KafkaError, IllegalStateError, OSError, BrokerUnavailable, NotYetReadable)
        while True:
            self._changed.clear()
            if self._is_leader:
                await reading.until_done(self._turn, errors)
            else:
                await self._disconnect()
                await self._changed.wait()

    async def _turn(self) -> None:
        try:
            await self._turn_once()
        except Exception:
            # The position is beyond records that were fetched and not processed.
            await self._disconnect()
            raise

    async def _turn_once(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._read_endpoints_at >= _ENDPOINTS_S:
            await self._refresh()
        if self._interests.are_watched and now_s - self._watched_at >= _WATCH_S:
            self._watched_at = now_s
            await self._notify(await self._watch())
        if self._consumer is None:
            await asyncio.sleep(_ENDPOINTS_S)
            return
        if now_s - self._committed_at >= _COMMIT_S:
            # Here, because all that was fetched has been processed.
            self._committed_at = now_s
            await _commit_positions(self._consumer)
        fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        for tp, records in fetched.items():
            if not self._is_leader:
                # The rest is dropped. If this reader leads again at once, it has to read it again.
                await self._disconnect()
                return
            await self._process(self._consumer, tp, records)
        for line in self._waiting.due(self._clock()):
            log.warning("notifications: %s", line)

    async def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._read_endpoints_at = 0.0
        self._waiting.clear()
        if consumer is not None:
            await consumer.stop()

    # -- what is read

    async def _refresh(self) -> None:
        """Read the endpoints; if they have changed, connect to the topics that are needed now."""
        fold = await self._endpoints.catch_up()
        interests = Interests(tuple(fold.active()), self._interests.rules)
        if interests == self._interests and self._consumer is not None:
            self._read_endpoints_at = asyncio.get_running_loop().time()
            return
        self._interests = interests
        await self._disconnect()
        if topics := interests.topics():
            await self._connect(topics)
        self._read_endpoints_at = asyncio.get_running_loop().time()

    async def _connect(self, since: Mapping[str, int | None]) -> None:
        consumer = await start_consumer(AIOKafkaConsumer(**self._options))
        try:
            await self._seek(consumer, since)
        except BaseException:
            await consumer.stop()
            raise
        self._consumer = consumer
        self._committed_at = asyncio.get_running_loop().time()

    async def _seek(self, consumer: AIOKafkaConsumer, since: Mapping[str, int | None]) -> None:
        """Assign the partitions, and continue at the committed offsets, or at times."""
        metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 (no public way)
        partitions = [
            TopicPartition(topic, number)
            for topic in since
            for number in sorted(metadata.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        starts = await self._starts(consumer, partitions, since)
        for tp, start in starts.items():
            seek_with_epoch(consumer, tp, *start)
        if starts:
            # Without an offset, the next reader of a rule would begin at the end, and skip what
            # was appended meanwhile.
            await consumer.commit({tp: start.as_committed() for tp, start in starts.items()})

    async def _starts(
        self,
        consumer: AIOKafkaConsumer,
        partitions: Sequence[TopicPartition],
        since: Mapping[str, int | None],
    ) -> dict[TopicPartition, Committed]:
        """Return where to read from: the committed offsets, or the offsets at times."""
        ruled = Interests((), self._interests.rules).topics()
        committed = await committed_offsets(consumer, *partitions)
        ends = await consumer.end_offsets(partitions)
        needed = await _offsets_at(consumer, ends, since)
        recent = await _offsets_at(consumer, ends, self._interests.new(self._clock()))
        starts = {}
        for tp in partitions:
            position = committed.get(tp)
            start = Committed(needed.get(tp, ends[tp]))
            # A rule needs all from its position on, also from before the time of an endpoint.
            is_ruled = tp.topic in ruled or tp not in needed
            if position is not None and (is_ruled or position.offset >= start.offset):
                start = await resume_offset(consumer, tp, position)
            if recent.get(tp, start.offset) < start.offset:
                start = Committed(recent[tp])
            starts[tp] = start
        return starts

    async def _process(
        self, consumer: AIOKafkaConsumer, tp: TopicPartition, records: Sequence[Incoming]
    ) -> None:
        """Have the notifications of a batch sent, up to a record that a newer release wrote."""
        known, newer = readable(records)
        await self._notify(notifications_of(known))
        if known and self._is_leader:
            await consumer.commit({tp: known[-1].offset + 1})
        if newer is not None:
            self._waiting.begin(tp, newer_schema_message(newer))
            consumer.pause(tp)

    async def _notify(self, notifications: Iterable[Notification]) -> None:
        """Have notifications sent; return when their instances have started."""
        commands = self._interests.commands(notifications, self._clock(), self._retries_ms)
        await self._send(list(commands))

    async def _send(self, commands: Sequence[Addressed]) -> None:
        """Send commands until all outcomes are known."""
        for first in range(0, len(commands), _GROUP):
            left = {command.instance_id: command for command in commands[first : first + _GROUP]}

            async def send_rest(left: dict[str, Addressed] = left) -> None:
                try:
                    replies = await self._client.send_many(list(left.values()))
                except OutcomeUnknown as error:
                    _settle(left, error.known.values())
                    raise
                _settle(left, replies)

            waiting = Retrying(log, "notifications have to wait", longest_s=_PAUSE_S)
            await waiting.until_done(
                send_rest, (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded)
            )


def _settle(left: dict[str, Addressed], replies: Iterable[ReplySent]) -> None:
    """Remove the commands with an outcome."""
    for reply in replies:
        command = left.pop(reply.command_id, None)
        if command is not None and reply.code not in ("", INSTANCE_EXISTS):
            log.error(
                "%s/%s was not started: %s", command.workflow, command.instance_id, reply.message
            )


async def _commit_positions(consumer: AIOKafkaConsumer) -> None:
    """Commit up to where partitions were read, except those that wait for a newer release.

    Raises:
        KafkaError: Kafka refused.
        TimeoutError: Kafka does not answer; reading must not wait for it for longer.
    """
    async with asyncio.timeout(_COMMIT_WITHIN_S):
        partitions = consumer.assignment() - consumer.paused()
        positions = {tp: await consumer.position(tp) for tp in partitions}
        if positions:
            await consumer.commit(positions)


async def _offsets_at(
    consumer: AIOKafkaConsumer,
    ends: Mapping[TopicPartition, int],
    since: Mapping[str, int | None],
) -> dict[TopicPartition, int]:
    """Return the offsets of the first records from the time of their topic on, if it has one."""
    times = {tp: at_ms for tp in ends if (at_ms := since.get(tp.topic)) is not None}
    first = await consumer.offsets_for_times(times) if times else {}
    return {tp: ends[tp] if (at := first.get(tp)) is None else at.offset for tp in times}
