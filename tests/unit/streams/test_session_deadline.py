"""The lease: whoever looks first after a stop, the pulse or an append, finds that it was lost."""

import pytest

from headwater.streams.pipeline.worker import SessionDeadline, SessionExpired


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.stops_after_reading = False

    def __call__(self) -> float:
        now = self.now
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
def lease(clock: Clock) -> SessionDeadline:
    return SessionDeadline(valid_for_s=10, monotonic=clock)


def test_before_the_first_pulse_nothing_is_lost(lease: SessionDeadline, clock: Clock):
    clock.stop()
    lease.check()


def test_a_pulse_in_time_keeps_it(lease: SessionDeadline, clock: Clock):
    for _ in range(5):
        lease.renew()
        clock.now += 10
        lease.check()


def test_an_append_after_a_stop_finds_it_lost_and_so_does_the_pulse_then(
    lease: SessionDeadline, clock: Clock
):
    lease.renew()
    clock.stop()
    with pytest.raises(SessionExpired):
        lease.check()
    with pytest.raises(SessionExpired):
        lease.renew()


def test_a_pulse_after_a_stop_finds_it_lost_and_so_does_an_append_then(
    lease: SessionDeadline, clock: Clock
):
    lease.renew()
    clock.stop()
    with pytest.raises(SessionExpired):
        lease.renew()
    with pytest.raises(SessionExpired):
        lease.check()


def test_a_stop_in_the_middle_of_a_pulse_does_not_renew_it(lease: SessionDeadline, clock: Clock):
    lease.renew()
    clock.now += 1
    clock.stops_after_reading = True
    lease.renew()
    with pytest.raises(SessionExpired):
        lease.check()
