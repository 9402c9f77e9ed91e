"""A delivery log in memory, and the contract that it and the real one both keep."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from headwater.processors.providers.headwater import delivery_of
from headwater.schemas.codec import decode, encode
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.providers.headwater import SystemEvent
from headwater.schemas.records import RequestAnswered, WebhookReceived
from headwater.streams.pipeline.reprocessing import DeliveryToReplay, ReplayResult
from headwater.streams.pipeline.webhook_log import (
    Appended,
    Prepare,
    Stored,
    WebhookLog,
    prepare_each,
)

Scenario: TypeAlias = Callable[[WebhookLog], Awaitable[None]]


class MemoryLog:
    """Keeps deliveries in a list; `away` makes it a log whose broker does not answer.

    What is in `fault` is raised by each append.
    """

    def __init__(self, *, away: bool = False) -> None:
        self.deliveries: list[WebhookReceived] = []
        self.ready = False
        self.away = away
        self.fault: Exception | None = None
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []

    async def start(self) -> None:
        self.ready = not self.away

    async def stop(self) -> None:
        self.ready = False

    async def append(self, delivery: WebhookReceived) -> Appended:
        return self._append(delivery)

    def _append(self, delivery: WebhookReceived) -> Appended:
        if self.away:
            raise _nothing_heard()
        if self.fault is not None:
            raise self.fault
        encode(delivery)
        if any(known.event_id == delivery.event_id for known in self.deliveries):
            return Appended(duplicate=True)
        self.deliveries.append(delivery)
        return Appended(duplicate=False)

    async def append_prepared(self, raw: object, prepare: Prepare[Any, Any]) -> object:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._append_waiting, prepare)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((raw, answer))
        return await answer

    def _append_waiting(self, prepare: Prepare[Any, Any]) -> None:
        waiting, self._waiting = self._waiting, []
        results = prepare_each(prepare, [raw for raw, _ in waiting])
        for (_, answer), result in zip(waiting, results, strict=True):
            try:
                read = isinstance(result, WebhookReceived)
                result = self._append(result) if read else result  # noqa: PLW2901
            except Exception as error:  # noqa: BLE001 (as the real one does)
                result = error  # noqa: PLW2901
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

    async def publish_fact(self, fact: SystemEvent, *, request_id: str) -> Appended:
        return await self.append(delivery_of(fact, request_id=request_id, now_ms=fact.at_ms))

    async def read(self, partition: int, offset: int) -> Stored | None:
        if self.away:
            raise _nothing_heard()
        del partition
        if offset >= len(self.deliveries):
            return None
        delivery = self.deliveries[offset]
        return Stored(delivery, (("ce_id", delivery.event_id),))

    async def read_all(
        self, positions: Collection[tuple[int, int]]
    ) -> Mapping[tuple[int, int], WebhookReceived]:
        result = {position: await self.read(*position) for position in positions}
        return {position: one.delivery for position, one in result.items() if one is not None}


class MemoryAnswers:
    """Keeps what was answered in a list."""

    def __init__(self) -> None:
        self.recorded: list[RequestAnswered] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def record(self, answer: RequestAnswered) -> None:
        self.recorded.append(decode(encode(answer), RequestAnswered))


class MemoryReplays:
    """Says that it replayed what it was asked to, and remembers that; `away` as above."""

    def __init__(self, *, away: bool = False) -> None:
        self._away = away
        self.replayed: list[tuple[int, int]] = []
        self.appended_again: list[tuple[int, int]] = []

    async def stop(self) -> None: ...

    async def replay(self, positions: Sequence[tuple[int, int]]) -> Sequence[ReplayResult]:
        if self._away:
            raise _nothing_heard()
        self.replayed += positions
        return [ReplayResult(p, o, "webhooks", ok=True, detail="") for p, o in positions]

    async def reprocess(
        self, deliveries: Collection[DeliveryToReplay]
    ) -> Mapping[str, tuple[int, int]]:
        if self._away:
            raise _nothing_heard()
        self.appended_again += [delivery.positions[0] for delivery in deliveries]
        return {one.event_id: (one.positions[0][0], 1_000) for one in deliveries}


class MemoryWipes:
    """Wipes that are done at once, but for users whose names have an odd number of letters."""

    def __init__(self, *, away: bool = False) -> None:
        self._away = away
        self.ordered: list[str] = []

    async def stop(self) -> None: ...

    async def order(self, user_id: str, wipe_id: str, subjects: Sequence[str]) -> int:
        del wipe_id, subjects
        if self._away:
            raise _nothing_heard()
        self.ordered.append(user_id)
        return len(user_id) % 2

    async def partitions(self) -> int:
        if self._away:
            raise _nothing_heard()
        return 1


def _nothing_heard() -> BrokerUnavailable:
    return BrokerUnavailable("expected an acknowledgement of memory within 5 s, found none")


def a_delivery(event_id: str) -> WebhookReceived:
    return WebhookReceived(
        event_id=event_id,
        request_id=f"request-of-{event_id}",
        source="terra",
        type="daily",
        subject=f"subject-of-{event_id}",
        sent_at_ms=1_782_000_000_000,
        updated_at_ms=0,
        received_at_ms=1_782_000_000_500,
        body=b'{"type":"daily"}',
    )


def an_answer(request_id: str, **changes: str) -> RequestAnswered:
    answer = RequestAnswered(
        request_id=request_id,
        source="terra",
        code="invalid_signature",
        reason="stale",
        detail="expected another time",
        event_id="",
        size=7,
        peer="203.0.113.7",
        left_out=0,
        at_ms=1_782_000_000_500,
    )
    return msgspec.structs.replace(answer, **changes)


class DeliveryLogContract:
    """What the gateway relies on; a subclass says how to make a log that is connected."""

    def run(self, scenario: Scenario) -> None:
        raise NotImplementedError

    def test_a_first_delivery_is_no_duplicate_and_a_second_is_one(self) -> None:
        async def scenario(log: WebhookLog) -> None:
            assert not (await log.append(a_delivery("contract-1"))).duplicate
            assert (await log.append(a_delivery("contract-1"))).duplicate
            assert not (await log.append(a_delivery("contract-2"))).duplicate

        self.run(scenario)

    def test_of_copies_that_arrive_together_exactly_one_is_no_duplicate(self) -> None:
        async def scenario(log: WebhookLog) -> None:
            copies = (log.append(a_delivery("contract-3")) for _ in range(20))
            answers = await asyncio.gather(*copies)
            assert sorted(one.duplicate for one in answers) == [False, *[True] * 19]

        self.run(scenario)

    def test_what_is_prepared_together_is_answered_one_by_one(self) -> None:
        def prepare(names: Sequence[str]) -> list[WebhookReceived | str]:
            return [a_delivery(name) if name.startswith("contract") else name for name in names]

        async def scenario(log: WebhookLog) -> None:
            await log.append(a_delivery("contract-4"))
            named = ["contract-5", "contract-4", "refused", "contract-6", "contract-5"]
            answers = await asyncio.gather(*(log.append_prepared(name, prepare) for name in named))
            assert answers.pop(2) == "refused"
            assert [one.duplicate for one in answers] == [False, True, False, True]

        self.run(scenario)

    def test_a_log_that_was_started_is_ready_and_one_that_was_stopped_is_not(self) -> None:
        logs: list[WebhookLog] = []

        async def scenario(log: WebhookLog) -> None:
            assert log.ready
            logs.append(log)

        self.run(scenario)
        assert not logs[0].ready
