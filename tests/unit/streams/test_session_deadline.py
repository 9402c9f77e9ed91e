"""The lease: whoever looks first after a stop, the pulse or an append, finds that it was lost."""

from collections.abc import Iterator

import pytest

from headwater.streams.ownership.deadlines import SessionDeadlines, SessionExpired


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.stops_after_reading = False

    def __call__(self) -> int:
        now = int(self.now * 1_000_000_000)
        if self.stops_after_reading:
            self.stop()
        return now

    def stop(self) -> None:
        self.now += 11
        self.stops_after_reading = False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Iterator[SessionDeadlines]:
    made = SessionDeadlines.create(session_s=10, clock_ns=clock)
    made.confirm(clock.now)
    yield made
    made.close()


def test_a_pulse_in_time_keeps_it(lease: SessionDeadlines, clock: Clock):
    for _ in range(5):
        lease.renew()
        clock.now += 9.9
        lease.check()


def test_an_append_after_a_stop_finds_it_lost_and_so_does_the_pulse_then(
    lease: SessionDeadlines, clock: Clock
):
    lease.renew()
    clock.stop()
    with pytest.raises(SessionExpired):
        lease.check()
    with pytest.raises(SessionExpired):
        lease.renew()


def test_a_pulse_after_a_stop_finds_it_lost_and_so_does_an_append_then(
    lease: SessionDeadlines, clock: Clock
):
    lease.renew()
    clock.stop()
    with pytest.raises(SessionExpired):
        lease.renew()
    with pytest.raises(SessionExpired):
        lease.check()


def test_a_stop_in_the_middle_of_a_pulse_does_not_renew_it(lease: SessionDeadlines, clock: Clock):
    lease.renew()
    clock.now += 1
    clock.stops_after_reading = True
    lease.renew()
    with pytest.raises(SessionExpired):
        lease.check()
