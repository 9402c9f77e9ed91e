"""The time of a process, as appends correct it."""

import asyncio

import pytest

from headwater.streams.kafka.broker_clock import BrokerClock

_HOUR_MS = 3_600_000


class World:
    """A clock of the day that jumps, one that does not, and a broker's that is right."""

    def __init__(self) -> None:
        self.ms, self.at_s, self.broker_ms = 1_000_000, 50.0, 1_000_000
        self.appends_made = 0
        self.clock = BrokerClock(lambda: self.ms, lambda: self.at_s)

    def passes(self, ms: int) -> None:
        self.ms += ms
        self.at_s += ms / 1_000
        self.broker_ms += ms

    def appends(self, *, there_ms: int = 0, back_ms: int = 0) -> None:
        """A record is on its way to the broker, and its acknowledgement is on its way back."""
        sent = self.clock.now()
        self.passes(there_ms)
        appended_ms = self.broker_ms
        self.passes(back_ms)
        self.clock.record_append(sent, appended_ms)

    async def ask(self) -> None:
        self.appends_made += 1
        self.appends()

    def settles(self) -> None:
        asyncio.run(self.clock.settle(self.ask))


def off_by(world: World) -> int:
    """By how much the time is ahead of the broker's, in ms; a millisecond is rounded away."""
    result = world.clock.now_ms() - world.broker_ms
    return 0 if abs(result) <= 2 else result


def test_a_clock_of_which_nothing_is_known_counts():
    world = World()
    world.ms += _HOUR_MS
    assert off_by(world) == _HOUR_MS
    assert not world.clock.is_doubtful()


@pytest.mark.parametrize("ms", [-9_000, 0, 9_000])
def test_a_clock_that_differs_by_less_than_the_limit_counts(
    ms: int, caplog: pytest.LogCaptureFixture
):
    world = World()
    world.ms += ms
    world.appends()
    world.passes(60_000)
    assert world.clock.now_ms() == world.ms
    assert not caplog.messages


@pytest.mark.parametrize(("ms", "words"), [(-_HOUR_MS, "behind"), (_HOUR_MS, "ahead of")])
def test_kafkas_time_counts_while_a_clock_is_wrong_and_the_log_says_so_once(
    ms: int, words: str, caplog: pytest.LogCaptureFixture
):
    world = World()
    world.ms += ms
    with caplog.at_level("INFO"):
        for _ in range(3):
            world.appends()
            world.passes(60_000)
            assert off_by(world) == 0
        (line,) = caplog.messages
        assert f"3600 s {words} Kafka's" in line
        world.ms -= ms
        assert world.clock.now_ms() == world.ms
        world.appends()
    assert caplog.messages[1:] == ["the clock of this machine is right again"]


@pytest.mark.parametrize("ms", [-_HOUR_MS, _HOUR_MS])
def test_a_jump_changes_nothing_even_before_anything_else_is_appended(ms: int):
    world = World()
    world.appends()
    world.passes(60_000)
    assert not world.clock.is_doubtful()
    world.ms += ms
    assert off_by(world) == 0
    assert world.clock.is_doubtful()
    world.ms -= ms
    assert not world.clock.is_doubtful()


@pytest.mark.parametrize(("there_ms", "back_ms"), [(30_000, 0), (0, 30_000)])
def test_a_slow_append_makes_no_clock_wrong(there_ms: int, back_ms: int):
    world = World()
    world.appends(there_ms=there_ms, back_ms=back_ms)
    assert world.clock.now_ms() == world.ms


@pytest.mark.parametrize(("there_ms", "back_ms"), [(30_000, 0), (0, 30_000)])
def test_what_is_known_stays_when_appends_become_slow(there_ms: int, back_ms: int):
    world = World()
    world.ms += _HOUR_MS
    world.appends()
    world.appends(there_ms=there_ms, back_ms=back_ms)
    assert off_by(world) == 0


def test_the_time_is_never_ahead_of_the_brokers_where_ours_is_wrong():
    world = World()
    world.ms += _HOUR_MS
    world.appends(there_ms=500, back_ms=300)
    assert off_by(world) in range(-303, 1)


@pytest.mark.parametrize("ms", [-_HOUR_MS, _HOUR_MS])
def test_one_append_ends_the_doubt_about_a_clock_that_was_set(ms: int):
    world = World()
    world.appends()
    world.ms += ms
    world.settles()
    assert not world.clock.is_doubtful()
    world.passes(_HOUR_MS)
    world.settles()
    assert (off_by(world), world.appends_made) == (0, 1)


def test_one_append_shows_that_the_machine_was_paused():
    world = World()
    world.appends()
    world.ms += _HOUR_MS  # The monotonic clock stood still meanwhile.
    world.broker_ms += _HOUR_MS
    assert world.clock.is_doubtful()
    world.settles()
    assert (world.clock.now_ms(), world.appends_made) == (world.ms, 1)


def test_one_append_shows_that_all_clocks_were_set():
    world = World()
    world.appends()
    world.ms -= _HOUR_MS
    world.broker_ms -= _HOUR_MS
    world.settles()
    assert (world.clock.now_ms(), world.appends_made) == (world.ms, 1)


def test_an_append_during_which_the_machine_was_paused_says_nothing():
    world = World()
    world.appends()
    sent = world.clock.now()
    appended_ms = world.broker_ms
    world.ms += _HOUR_MS
    world.broker_ms += _HOUR_MS
    world.clock.record_append(sent, appended_ms)
    assert world.clock.is_doubtful()
    world.settles()
    assert world.clock.now_ms() == world.ms


def test_a_broker_that_does_not_tell_the_time_is_asked_three_times():
    world = World()
    world.appends()
    world.ms += _HOUR_MS

    async def tells_nothing() -> None:
        world.appends_made += 1

    asyncio.run(world.clock.settle(tells_nothing))
    assert (world.clock.now_ms(), world.appends_made) == (world.ms, 3)
