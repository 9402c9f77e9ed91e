"""Waiting for what comes back by itself, on a clock that the test moves."""

import asyncio
import logging

import pytest

from headwater.schemas.errors import BrokerUnavailable, StoreUnavailable
from headwater.streams.kafka.retrying import Retrying

log = logging.getLogger("test")


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Broker:
    """Is away for so many attempts."""

    def __init__(self, away: int) -> None:
        self.away = away

    async def answer(self) -> str:
        self.away -= 1
        if self.away >= 0:
            raise BrokerUnavailable(f"away {self.away}")
        return "here"


def retrying(clock: Clock) -> Retrying:
    return Retrying(
        log,
        "replies have to wait",
        first_s=1,
        longest_s=4,
        sleep=clock.sleep,
        monotonic=lambda: clock.now,
    )


def test_an_action_is_repeated_with_longer_and_longer_pauses_until_it_succeeds():
    clock = Clock()
    assert asyncio.run(retrying(clock).until_done(Broker(5).answer)) == "here"
    assert clock.pauses == [1, 2, 4, 4, 4]


def test_an_outage_is_reported_when_it_begins_every_minute_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "test")
    clock = Clock()
    waiting = retrying(clock)
    asyncio.run(waiting.until_done(Broker(33).answer))
    begin, minute, two_minutes, end = (record.getMessage() for record in caplog.records)
    assert begin == "replies have to wait: away 32; trying again"
    assert minute.startswith("replies have to wait")
    assert two_minutes.startswith("replies have to wait")
    assert end == "replies have to wait: over after 127.0 s"
    caplog.clear()
    asyncio.run(waiting.until_done(Broker(1).answer))
    assert len(caplog.records) == 2
    assert clock.pauses[-1] == 1


def test_what_needs_no_waiting_is_not_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "test")
    asyncio.run(retrying(Clock()).until_done(Broker(0).answer))
    assert not caplog.records


def test_an_outage_as_short_as_is_usual_is_not_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "test")
    clock = Clock()

    async def outage(failures: int) -> None:
        waiting = retrying(clock)
        for number in range(failures):
            await waiting.failed(f"away {number}", quiet=2)
        waiting.succeeded()

    asyncio.run(outage(2))
    assert not caplog.records
    asyncio.run(outage(4))
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin == "replies have to wait: away 2; trying again"
    assert end == "replies have to wait: over after 11.0 s"


def test_another_error_goes_through():
    async def refused() -> None:
        raise StoreUnavailable("Postgres is away")

    with pytest.raises(StoreUnavailable):
        asyncio.run(retrying(Clock()).until_done(refused))


def test_a_failed_connection_is_logged_once_however_many_wait_for_it(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "test")
    clock = Clock()

    def monotonic() -> float:
        return clock.now

    async def outage() -> None:
        refused = ConnectionRefusedError("127.0.0.1:9092 refused")
        away = BrokerUnavailable("expected Kafka, found none")
        away.__cause__ = refused
        waiting = [
            Retrying(log, what, sleep=clock.sleep, monotonic=monotonic)
            for what in ("replies have to wait", "commands have to wait", "keys have to wait")
        ]
        for seconds in (0.0, 59.0, 2.0):
            clock.now += seconds
            for one, error in zip(waiting, (away, refused, away), strict=True):
                await one.failed(error)
        await waiting[2].failed(BrokerUnavailable("another reason"))
        for one in waiting:
            one.succeeded()
        await waiting[1].failed(away)

    asyncio.run(outage())
    begin, minute, other, *ends, again = caplog.messages
    assert begin == "replies have to wait: expected Kafka, found none; trying again"
    assert minute.endswith("trying again")
    assert other == "keys have to wait: another reason; trying again"
    assert [end.partition(":")[2][:5] for end in ends] == [" over"] * len(ends)
    assert again == "commands have to wait: expected Kafka, found none; trying again"
