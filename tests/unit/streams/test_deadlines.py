"""Deadlines of ownership: what was not confirmed within a session is not surely owned."""

from collections.abc import Iterator

import pytest

from headwater.streams.ownership.deadlines import SESSION_S, SessionDeadlines

NS = 1_000_000_000


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def ns(self) -> int:
        return int(self.now_s * NS)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Iterator[SessionDeadlines]:
    made = SessionDeadlines.create(clock_ns=clock.ns)
    made.set_partitions(4)
    made.confirm(clock.now_s)
    yield made
    made.close()


def test_nothing_is_owned_before_it_was_acquired(deadlines: SessionDeadlines, clock: Clock):
    deadlines.confirm(clock.now_s)
    assert not any(map(deadlines.holds, range(4)))
    assert deadlines.is_member()


def test_a_process_that_was_suspended_owns_nothing_before_another_confirmation(
    deadlines: SessionDeadlines, clock: Clock
):
    assert deadlines.acquire(2, deadlines.generation)
    assert deadlines.holds(2)
    clock.now_s += SESSION_S
    assert not deadlines.holds(2)
    assert not deadlines.is_member()
    deadlines.confirm(clock.now_s)
    assert deadlines.holds(2)
    assert not deadlines.holds(1)


def test_an_answer_that_was_read_late_counts_from_when_the_request_was_sent(
    deadlines: SessionDeadlines, clock: Clock
):
    deadlines.acquire(2, deadlines.generation)
    sent_s = clock.now_s + 3
    clock.now_s += 17
    deadlines.confirm(sent_s)
    assert not deadlines.holds(2)


def test_a_partition_is_owned_no_longer_than_the_membership_was_confirmed_for(
    deadlines: SessionDeadlines, clock: Clock
):
    clock.now_s += SESSION_S - 1
    deadlines.acquire(2, deadlines.generation)
    assert deadlines.holds(2)
    clock.now_s += 1
    assert not deadlines.holds(2)


def test_an_earlier_confirmation_that_arrives_later_shortens_nothing(
    deadlines: SessionDeadlines, clock: Clock
):
    deadlines.acquire(2, deadlines.generation)
    deadlines.confirm(clock.now_s - 5)
    clock.now_s += SESSION_S - 1
    assert deadlines.holds(2)


def test_when_a_generation_ends_nothing_of_it_is_owned_whatever_confirms_it(
    deadlines: SessionDeadlines, clock: Clock
):
    generation = deadlines.generation
    deadlines.acquire(2, generation)
    deadlines.end_generation()
    deadlines.confirm(clock.now_s)
    assert not deadlines.holds(2)
    assert not deadlines.acquire(2, generation)
    assert not deadlines.holds(2)
    assert deadlines.acquire(2, deadlines.generation)
    assert deadlines.holds(2)


def test_a_partition_that_is_released_is_not_owned(deadlines: SessionDeadlines, clock: Clock):
    deadlines.acquire(2, deadlines.generation)
    deadlines.release(2)
    deadlines.confirm(clock.now_s)
    assert not deadlines.holds(2)


def test_a_partition_taken_over_for_long_is_owned_by_the_heartbeats_meanwhile(
    deadlines: SessionDeadlines, clock: Clock
):
    clock.now_s += 3 * SESSION_S
    deadlines.confirm(clock.now_s)
    deadlines.acquire(2, deadlines.generation)
    assert deadlines.holds(2)


def test_a_host_reads_the_same_deadlines_by_the_number_of_an_activation(
    deadlines: SessionDeadlines, clock: Clock
):
    shared = SessionDeadlines(deadlines.descriptor, clock_ns=clock.ns)
    deadlines.acquire(3, deadlines.generation)
    activations = {partition: 4 * 65_536 + partition for partition in range(4)}
    assert [shared.may_begin(activations[partition]) for partition in range(4)] == [
        *(False, False, False),
        True,
    ]
    deadlines.end_generation()
    assert not shared.may_begin(activations[3])
