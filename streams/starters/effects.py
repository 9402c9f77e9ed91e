"""Carries out what deliveries do to workflows: a consumer of the topic `effects`.

The commands of a batch of one partition are sent in the order of the offsets, and its end is
committed when the outcome of each is known and what was refused is among the dead letters. After a
crash in between the batch is sent again, which changes nothing (`processors.triggers`). A command
without an outcome is sent again for as long as it takes; those behind it wait, because owners take
no signal that comes after a later one of the same sender.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from headwater.processors.triggers.decide import NoEffect, Send, refused, send_of
from headwater.schemas.codec import decode
from headwater.schemas.errors import (
    BrokerUnavailable,
    HeadwaterError,
    NewerSchema,
    NotYetReadable,
    Overloaded,
)
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import ReplySent
from headwater.schemas.newer import Waiting, readable, why_waits
from headwater.schemas.records import EffectDecided
from headwater.schemas.topics import EFFECTS
from headwater.streams.engine.quarantine import describe_error
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.clients import started
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.committed import Committed, start_of
from headwater.streams.kafka.dead_letters import REPLAY_OF, dead_letter, text_header
from headwater.streams.kafka.group_member import GroupMember
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.kafka.truncation import begin_at, leader_epoch_of
from headwater.streams.starters.effect_memory import Seen, look_back
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

log = logging.getLogger(__name__)

STAGE: Final = "starter"
#: Commands that are sent together, which are appended together too: if that fails, a beginning of
#: them is in the log, never a later one alone.
_GROUP: Final = 500
_BATCH_RECORDS: Final = 500
_FETCH_BYTES: Final = 4 * 1024 * 1024
_POLL_MS: Final = 500
_METADATA_AGE_MS: Final = 3_000
#: The longest pause before commands without an outcome are sent again.
_PAUSE_S: Final = 30.0
_STOP_S: Final = 1.0


class Starter:
    """Carries out effects until it is cancelled.

    Shape:  group is the consumer group, member a name that it keeps over restarts.
    """

    def __init__(
        self,
        client: Commands,
        *,
        cluster: Cluster,
        group: str,
        member: str | None,
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._clock = clock
        self._appender = Appender(cluster=cluster, client_id=group)
        self._seen: dict[TopicPartition, Seen] = {}
        self._waiting = Waiting()
        #: Assigned, and not known yet where they go on.
        self._fresh: set[TopicPartition] = set()
        self._options = {
            **cluster.options(),
            "client_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": _FETCH_BYTES,
            "metadata_max_age_ms": _METADATA_AGE_MS,
        }
        self._consumer: AIOKafkaConsumer
        # Deciding may keep the event loop of this process busy for long.
        self._member = GroupMember(
            cluster=cluster,
            group=group,
            topic=EFFECTS,
            member=member,
            client_id=group,
            rebalances=self,
        )

    async def run(self) -> None:
        """Carry out every effect that comes.

        Raises:
            MemberFenced: Another process joined under the name of this member.
        """
        reading = Retrying(log, "effects of deliveries cannot be read")
        await reading.until_done(self._connect, (KafkaError, OSError))
        try:
            await self._member.start()
            try:
                await self._member.during(self._read(reading))
            finally:
                await self._member.stop()
        finally:
            await self._consumer.stop()
            await self._appender.stop(within_s=_STOP_S)

    async def _connect(self) -> None:
        self._consumer = AIOKafkaConsumer(**self._options)
        await started(self._consumer)

    async def _read(self, reading: Retrying) -> NoReturn:
        errors = (KafkaError, IllegalStateError, OSError, BrokerUnavailable)
        while True:
            await reading.until_done(self._round, errors)

    async def _round(self) -> None:
        for where in list(self._fresh):
            await self._place(where)
        fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH_RECORDS)
        for where, records in fetched.items():
            if where in self._seen:
                await self._take(where, records)
        for line in self._waiting.due(self._clock()):
            log.warning("effects: %s", line)

    async def _take(self, where: TopicPartition, records: Sequence[Incoming]) -> None:
        """Carries out a batch, up to what only a newer release can read."""
        known, newer = readable(records)
        if known:
            await self._carry_out(self._seen[where], known)
            await self._commit(where, known[-1].offset + 1)
        if newer is not None and where in self._seen:
            self._stop_at(where, why_waits(newer))

    def _stop_at(self, where: TopicPartition, why: str) -> None:
        """Reads nothing more of a partition until it is assigned anew."""
        self._waiting.begin(where, why)
        self._consumer.pause(where)
        self._seen.pop(where, None)
        self._fresh.discard(where)

    # -- partitions

    async def assigned(self, numbers: frozenset[int]) -> None:
        """Note the partitions; nothing of them is read until it is known from where on."""
        if numbers:
            partitions = [TopicPartition(EFFECTS, number) for number in sorted(numbers)]
            self._consumer.assign(partitions)
            self._consumer.pause(*partitions)
            self._fresh |= set(partitions)

    async def revoked(self, numbers: frozenset[int]) -> None:
        """Forget partitions."""
        self._consumer.pause(*self._consumer.assignment())
        for number in numbers:
            where = TopicPartition(EFFECTS, number)
            self._seen.pop(where, None)
            self._fresh.discard(where)
            self._waiting.end(where)

    def confirmed(self, sent_s: float) -> None:
        """Do nothing: commands that are sent again change nothing."""

    def revocation_ended(self) -> None:
        """Do nothing, for the same reason."""

    async def _place(self, where: TopicPartition) -> None:
        """Goes on where the group was; a group that is new begins with the first effect."""
        committed = await self._member.committed(where) or Committed(0)
        start = await start_of(self._consumer, where, committed)
        try:
            seen = await look_back(self._cluster, where.partition, start.offset)
        except NewerSchema as error:
            # Without it, nobody here knows which effects behind it are copies.
            self._stop_at(where, error.message)
            return
        if where in self._fresh:
            begin_at(self._consumer, where, *start)
            self._consumer.resume(where)
            self._fresh.discard(where)
            self._seen[where] = seen

    async def _commit(self, where: TopicPartition, offset: int) -> None:
        """Commits; a partition that is somebody else's by now is read again by them."""
        with contextlib.suppress(KafkaError, IllegalStateError):
            leader_epoch = leader_epoch_of(self._consumer, where)
            await self._member.commit({where: Committed(offset, leader_epoch)})

    # -- batches

    async def _carry_out(self, seen: Seen, records: Sequence[Incoming]) -> None:
        """Carries out a batch; when it returns, every outcome is known and durable."""
        letters: list[Outgoing] = []
        sends: list[tuple[Incoming, Send]] = []
        for record in records:
            if record.value is None:
                continue  # A wipe has removed it.
            try:
                effect = decode(record.value, EffectDecided)
                replayed = text_header(record, REPLAY_OF) is not None
                if not seen.is_copy(effect, record.offset) or replayed:
                    sends.append((record, send_of(effect, record.partition, record.offset)))
            except HeadwaterError as error:
                letters.append(self._letter(record, NoEffect("", error.code, error.message)))
            except Exception as error:
                log.exception("an effect cannot be carried out")
                letters.append(self._letter(record, NoEffect("", INTERNAL, repr(error))))
        for first in range(0, len(sends), _GROUP):
            group = sends[first : first + _GROUP]
            replies = await self._send([send for _, send in group])
            for record, send in group:
                reply = replies[send.command_id]
                failed = refused(send, reply.code, reply.message)
                if failed is not None:
                    letters.append(self._letter(record, failed))
        await self._park(letters)

    async def _send(self, sends: Sequence[Send]) -> dict[str, ReplySent]:
        """Sends commands until the outcome of each is known."""
        known: dict[str, ReplySent] = {}

        async def send_rest() -> None:
            left = [each for each in sends if each.command_id not in known]
            try:
                replies = await self._client.send_many([_addressed(each) for each in left])
            except OutcomeUnknown as error:
                known.update(error.known)
                raise
            except HeadwaterError:
                raise
            except Exception as error:
                log.exception("%d commands cannot be sent together", len(left))
                if len(left) > 1:
                    for each in left:
                        known.update(await self._send([each]))
                    return
                replies = [_not_sent(left[0], error)]
            known.update((reply.command_id, reply) for reply in replies)

        waiting = Retrying(log, "deliveries have to wait for their workflows", longest_s=_PAUSE_S)
        await waiting.until_done(
            send_rest, (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded)
        )
        return known

    def _letter(self, record: Incoming, failed: NoEffect) -> Outgoing:
        log.warning("an effect is a dead letter: %s", failed.detail)
        return dead_letter(
            record,
            stage=STAGE,
            reason=failed.reason,
            detail=failed.detail,
            now_ms=self._clock(),
            rule=failed.name,
            **_ids(record),
        )

    async def _park(self, letters: list[Outgoing]) -> None:
        if letters:
            await Retrying(log, "dead letters have to wait").until_done(
                lambda: self._appender.append_or_stop(letters)
            )


def _not_sent(send: Send, error: Exception) -> ReplySent:
    """Return the outcome of a command that no record can hold."""
    return ReplySent(
        command_id=send.command_id,
        code=INTERNAL,
        message=describe_error(error),
        status="",
        run_number=0,
        partition=-1,
        position=-1,
    )


def _addressed(send: Send) -> Addressed:
    return Addressed(send.workflow, send.instance_id, send.command, send.command_id)


def _ids(record: Incoming) -> dict[str, Any]:
    with contextlib.suppress(HeadwaterError):
        event = decode(record.value, EffectDecided)
        return {"event_id": event.event_id, "request_id": event.request_id}
    return {}
