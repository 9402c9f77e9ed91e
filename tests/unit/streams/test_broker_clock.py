"""Whether our clock is ahead of the brokers', as appends show it."""

import pytest

from headwater.streams.kafka.broker_clock import BrokerClock


class World:
    """A clock of the day that jumps, and one that does not."""

    def __init__(self) -> None:
        self.ms, self.at_s = 1_000_000, 50.0
        self.clock = BrokerClock(lambda: self.ms, lambda: self.at_s)

    def passes(self, ms: int) -> None:
        self.ms += ms
        self.at_s += ms / 1_000

    def appends(self, broker_ms: int, took_ms: int = 0) -> None:
        sent = self.clock.now()
        self.passes(took_ms)
        self.clock.seen(sent, broker_ms)


def test_a_clock_of_which_nothing_is_known_is_not_ahead():
    world = World()
    assert (world.clock.ahead_ms(), world.clock.age_s()) == (0, None)
    assert not world.clock.is_doubtful()


def test_a_slow_append_makes_no_clock_ahead():
    world = World()
    world.appends(world.ms + 9_000, took_ms=10_000)
    assert world.clock.ahead_ms() == 0


def test_a_jump_is_known_before_anything_else_is_appended():
    world = World()
    world.appends(world.ms)
    world.passes(60_000)
    assert (world.clock.ahead_ms(), world.clock.age_s()) == (0, 60.0)
    world.ms += 3_600_000
    assert world.clock.ahead_ms() == 3_600_000
    world.ms -= 3_600_000
    assert world.clock.ahead_ms() == 0


def test_a_machine_that_slept_is_right_again_with_the_next_append():
    world = World()
    world.appends(world.ms)
    world.ms += 3_600_000  # The monotonic clock stood still meanwhile.
    assert world.clock.ahead_ms() == 3_600_000
    world.appends(world.ms)
    assert world.clock.ahead_ms() == 0


def test_nothing_is_due_earlier_for_a_jump_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
):
    world = World()
    world.appends(world.ms)
    world.passes(5_000)
    due_ms = world.clock.due_ms()
    assert due_ms == world.ms
    world.ms += 3_600_000
    assert [world.clock.due_ms() for _ in range(2)] == [due_ms, due_ms]
    (told,) = caplog.messages
    assert "3600 s ahead" in told
    world.ms -= 3_600_000
    assert world.clock.due_ms() == due_ms
