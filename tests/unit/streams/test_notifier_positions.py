"""Where a notifier begins to read, and what it commits."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from headwater.processors.triggers.reactions import reaction_rules
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.endpoints import EndpointCreated
from headwater.schemas.topics import AUDITOR, DEAD_LETTERS
from headwater.streams.starters import notifier
from headwater.streams.starters.notifier import Notifier
from tests.fakes.endpoints import MemoryEndpoints

NOW_MS = 1_782_900_000_000
RULES = reaction_rules(
    read_rules("""
[[rule]]
name = "dead"
source = "headwater"
type = "dead_letter"
workflow = "support"
mode = "start"
""")
)
LETTERS, FINDINGS = TopicPartition(DEAD_LETTERS, 0), TopicPartition(AUDITOR, 0)


class Consumer:
    """A consumer of logs in memory, with one partition a topic.

    Attributes:
        ends: End offset by partition.
        group: Committed offset by partition; several consumers may share it.
        at_time: Offset that every look-up by time gives, if it is before the end.
        fetched: Answers of `getmany`, in order.
    """

    def __init__(self, group: dict[TopicPartition, int], at_time: int = 1_000_000) -> None:
        self.ends: dict[TopicPartition, int] = {LETTERS: 100, FINDINGS: 100}
        self.group, self.at_time = group, at_time
        self.positions: dict[TopicPartition, int] = {}
        self.fetched: list[dict[TopicPartition, list[Any]]] = []
        self.held: set[TopicPartition] = set()
        self.refusal: Exception | None = None
        self.stopped = False
        self._coordinator = self
        self._client = self

    async def fetch_all_metadata(self) -> Any:  # noqa: ANN401 (aiokafka's)
        return SimpleNamespace(partitions_for_topic=lambda _: {0})

    async def fetch_committed_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(self.group.get(tp, -1), "") for tp in partitions}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.positions = dict.fromkeys(partitions, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def paused(self) -> set[TopicPartition]:
        return self.held

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in partitions}

    async def offsets_for_times(
        self, times: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {
            tp: OffsetAndTimestamp(self.at_time, at_ms) if self.at_time < self.ends[tp] else None
            for tp, at_ms in times.items()
        }

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    async def commit(self, offsets: dict[TopicPartition, Any]) -> None:
        assert offsets, "aiokafka refuses an empty commit"
        if self.refusal is not None:
            raise self.refusal
        for tp, offset in offsets.items():
            self.group[tp] = getattr(offset, "offset", offset)

    async def getmany(self, **_: int) -> dict[TopicPartition, list[Any]]:
        fetched = self.fetched.pop(0) if self.fetched else {}
        for tp, records in fetched.items():
            self.positions[tp] = records[-1].offset + 1
        return fetched

    async def stop(self) -> None:
        self.stopped = True


class Scene:
    """A notifier that leads, with a new consumer at every connect."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        committed: dict[TopicPartition, int],
        *,
        rules: Any = RULES,  # noqa: ANN401 (a tuple of rules)
        at_time: int = 1_000_000,
    ) -> None:
        self.group, self.consumers = committed, list[Consumer]()
        self.endpoints = MemoryEndpoints()

        async def start(_: object) -> Consumer:
            self.consumers.append(Consumer(self.group, at_time))
            return self.consumers[-1]

        def seek(consumer: Consumer, tp: TopicPartition, offset: int, _: int = -1) -> None:
            consumer.positions[tp] = offset

        monkeypatch.setattr(notifier, "AIOKafkaConsumer", lambda **_: None)
        monkeypatch.setattr(notifier, "start_consumer", start)
        monkeypatch.setattr(notifier, "seek_with_epoch", seek)
        cluster: Any = SimpleNamespace(options=dict)
        self.notifier = Notifier(
            None,  # type: ignore[arg-type]
            self.endpoints,  # type: ignore[arg-type]
            rules,
            self._watch,
            cluster=cluster,
            app_id="app",
            member=None,
            retries_ms=(),
            clock=lambda: NOW_MS,
        )
        self.notifier._is_leader = True

    async def _watch(self) -> list[Any]:
        return []

    async def create(self, *types: str, at_ms: int = NOW_MS - 3_600_000) -> None:
        await self.endpoints.write(
            EndpointCreated(
                id="ep_1", url="https://example.com", description="", types=types, workflows=(),
                tables=(), reasons=(), by="admin", at_ms=at_ms,
            )
        )  # fmt: skip

    @property
    def consumer(self) -> Consumer:
        return self.consumers[-1]

    async def turn(self) -> None:
        await self.notifier._turn()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_a_rule_continues_where_it_was_when_an_endpoint_needs_the_topic_later(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40}, at_time=90)
        await scene.create("dead_letter")
        await scene.turn()
        assert scene.consumer.positions == {LETTERS: 40}

    run(main)


def test_without_a_rule_a_topic_is_read_from_the_time_of_its_endpoint(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40}, rules=(), at_time=90)
        await scene.create("dead_letter")
        await scene.turn()
        assert scene.consumer.positions == {LETTERS: 90}

    run(main)


def test_a_quiet_partition_has_a_committed_offset_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise the next reader would begin at its end, and skip the first record."""

    async def main() -> None:
        scene = Scene(monkeypatch, {})
        await scene.turn()
        assert scene.group == {LETTERS: 100}

    run(main)


def test_positions_of_quiet_partitions_are_committed_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
):
    """Kafka removes offsets that were not committed for long."""

    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40})
        await scene.create("auditor_finding")
        await scene.turn()
        scene.consumer.held = {FINDINGS}
        scene.group.clear()
        await scene.turn()
        assert not scene.group
        monkeypatch.setattr(notifier, "_COMMIT_S", 0.0)
        await scene.turn()
        assert scene.group == {LETTERS: 40}

    run(main)


def test_without_partitions_nothing_is_committed(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        monkeypatch.setattr(notifier, "_COMMIT_S", 0.0)
        monkeypatch.setattr(Consumer, "assignment", lambda _: set())
        scene = Scene(monkeypatch, {})
        await scene.turn()

    run(main)


def test_after_an_error_all_is_read_again_from_the_committed_offsets(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40, FINDINGS: 50}, at_time=10)
        await scene.create("auditor_finding")
        await scene.turn()
        first = scene.consumer
        record = SimpleNamespace(offset=40, value=b"", key=b"k", headers=(), topic=DEAD_LETTERS)
        later = SimpleNamespace(offset=50, value=b"", key=b"k", headers=(), topic=AUDITOR)
        first.fetched.append({LETTERS: [record], FINDINGS: [later]})
        first.refusal = TopicAuthorizationFailedError()
        monkeypatch.setattr(notifier, "readable", lambda records: (records, None))
        monkeypatch.setattr(notifier, "notifications_of", lambda _: [])
        with pytest.raises(TopicAuthorizationFailedError):
            await scene.turn()
        assert first.stopped
        await scene.turn()
        assert scene.consumer is not first
        assert scene.consumer.positions == {LETTERS: 40, FINDINGS: 50}

    run(main)


def test_a_reader_that_lost_the_lead_in_a_batch_reads_the_rest_again(
    monkeypatch: pytest.MonkeyPatch,
):
    """It may lead again before it has noticed, and its position is beyond the batch."""

    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40})
        await scene.turn()
        scene.consumer.fetched.append({LETTERS: [SimpleNamespace(offset=40)]})
        await scene.notifier.revoked(frozenset({0}))
        await scene.turn()
        await scene.notifier.assigned(frozenset({0}))
        await scene.turn()
        assert len(scene.consumers) == 2
        assert scene.consumer.positions == {LETTERS: 40}

    run(main)


def test_a_connected_reader_reads_the_endpoints_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
):
    async def main() -> None:
        scene = Scene(monkeypatch, {LETTERS: 40})
        await scene.turn()
        scene.endpoints.reads = 0
        # As if the time of the last reading was long ago.
        scene.notifier._read_endpoints_at -= 3600
        await scene.turn()
        await scene.turn()
        await scene.turn()
        assert scene.endpoints.reads == 1

    run(main)
