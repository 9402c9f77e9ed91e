"""What a driver of several partitions lets go, and when; `tests/simulation` has one in each."""

from typing import Final

from headwater.processors.code.host_messages import Activate, Cancel, CodeCommand, Raise
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import Reached, RetryPolicy, StepRaised, StepReturned
from headwater.processors.runs.host_messages import AbandonAttempt, AttemptStarted, Evict, Requested
from headwater.schemas.history import (
    CommandSent,
    Failure,
    RunErrored,
    StartRun,
    StepCompleted,
    StepFailed,
)
from headwater.streams.engine.code import Code
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from headwater.streams.engine.turns import Flight, Partition, Released, StepTransaction, Turn
from tests.fakes.engines import ENGINES, REPLAY

#: The host that has a workflow.
HOSTS: Final = {"order": 0, "parcel": 1}
STEP: Final = Reached("pay", "pay", 0, 0, 3, 600)
POLICY: Final = RetryPolicy(2, 1_000, "constant")
COMPLETED: Final = StepReturned(STEP, 1, POLICY, "5")
RETURNED: Final = StepReturned(STEP, 1, POLICY, "5", statements=(("insert", "[]"),))


class Worker:
    """A driver, and a log that is long enough for everything."""

    def __init__(self, *numbers: int) -> None:
        self.driver = Driver(partitions=2)
        for number in numbers:
            self.add_partition(number)

    def add_partition(self, number: int) -> Partition:
        owner = Owner(
            number,
            Claims(epoch=0),
            LiveInstances(ENGINES),
            code=Code(dict.fromkeys(HOSTS, REPLAY.kind), hosts=HOSTS),
            number_activations=lambda host: self.driver.number_activation(number, host),
            draw_seed=lambda: "seed",
        )
        partition = Partition(number, owner, 0, {}, start=0, position=1, replied=0)
        self.driver.add_partition(partition)
        return partition

    def start(self, number: int, offset: int = 0, workflow: str = "order") -> Flight:
        self.command(number, offset, workflow)
        return self.flight()

    def command(self, number: int, offset: int, workflow: str = "order") -> None:
        sent = CommandSent(
            command_id=f"{number}-{offset}",
            workflow=workflow,
            instance_id=f"o-{offset}",
            sent_at_ms=0,
            reply_to=0,
            command=StartRun("1"),
        )
        self.driver.partitions[number].commands.append((offset, sent))

    def turn(self) -> Turn:
        return self.driver.turn(0)

    def recorded_ms(self, offset: int, at_ms: int) -> int:
        """The time that a run has in the log which begins in a turn at a time."""
        self.command(0, offset)
        (flight,) = self.driver.turn(at_ms).flights
        self.follows(flight, 1)
        ((_, record),) = flight.records()
        return record.at_ms

    def flight(self) -> Flight:
        (flight,) = self.turn().flights
        return flight

    def follows(self, flight: Flight, first: int | None) -> Released:
        self.driver.appended(flight, first)
        return self.driver.take_released()

    def activation(self, number: int, offset: int = 0, workflow: str = "order") -> int:
        released = self.follows(self.start(number, offset, workflow), 1)
        (activate,) = released.to_hosts.pop(HOSTS[workflow])
        assert not released.to_hosts
        assert isinstance(activate, Activate)
        return activate.activation


def _answered(released: Released) -> list[str]:
    return [reply.command_id for answer in released.answers for _, reply in answer.replies]


def test_what_a_partition_has_under_way_follows_no_more_once_it_is_given_up():
    worker = Worker(0, 1)
    flights = worker.start(0), worker.start(1)
    (activation,) = worker.driver.partitions[0].owner.activations()
    worker.driver.remove_partition(0)
    assert worker.driver.take_released().to_hosts == {0: [Evict(activation)]}
    worker.add_partition(0)
    removed = worker.follows(flights[0], 1)
    assert (removed.answers, removed.to_hosts) == ([], {})
    assert _answered(worker.follows(flights[1], 1)) == ["1-0"]


def test_what_follows_waits_for_the_batches_before_and_of_one_that_is_unknown_nothing_does():
    worker = Worker(0)
    first, second = worker.start(0), worker.start(0, 1)
    assert not worker.driver.may_turn()
    released = worker.follows(second, 2)
    assert (released.answers, released.to_hosts) == ([], {})
    released = worker.follows(first, None)
    assert _answered(released) == ["0-1"]
    assert len(released.to_hosts[0]) == 1
    assert worker.driver.may_turn()


def test_a_partition_whose_appends_do_not_return_holds_up_no_other():
    worker = Worker(0, 1)
    stuck = worker.start(0), worker.start(0, 1)
    worker.command(0, 2)
    for offset in range(5):
        (flight,) = [worker.start(1, offset)]
        assert flight.partition.number == 1
        assert _answered(worker.follows(flight, 2 * offset)) == [f"1-{offset}"]
    assert _answered(worker.follows(stuck[0], 1)) == ["0-0"]
    assert _answered(worker.follows(stuck[1], 2)) == ["0-1"]
    assert _answered(worker.follows(worker.flight(), 3)) == ["0-2"], "its commands have waited"


def test_a_partition_that_is_held_takes_part_in_no_turn():
    worker = Worker(0)
    activation = worker.activation(0)
    partition = worker.driver.partitions[0]
    partition.held = True
    worker.command(0, 1)
    worker.driver.host_sent([Requested(activation, COMPLETED)])
    assert worker.turn().flights == []
    assert not partition.owner.has_staged()
    partition.held = False
    assert len(worker.flight().records()) == 2


def test_the_time_of_a_partition_does_not_go_back_a_little():
    worker = Worker(0)
    times = [100_000, 90_000, 99_999, 100_001]
    assert [worker.recorded_ms(n, at_ms) for n, at_ms in enumerate(times)] == [
        *(100_000, 100_000, 100_000),
        100_001,
    ]


def test_a_time_that_is_far_ahead_was_a_wrong_clocks_and_is_not_waited_for():
    worker = Worker(0)
    worker.driver.partitions[0].now_ms = 3_600_000
    assert worker.recorded_ms(0, 100_000) == 100_000
    worker.driver.partitions[0].now_ms = 120_000
    assert worker.recorded_ms(1, 100_001) == 120_000


def test_what_a_host_sent_counts_before_it_is_gone_and_what_the_next_sends_after():
    worker = Worker(0, 1)
    activation = worker.activation(1)
    other = worker.activation(0)
    for item in (activation, other):
        worker.driver.host_sent([Requested(item, COMPLETED)])
    worker.driver.host_lost("it is gone")
    worker.driver.host_sent([Requested(activation, StepReturned(STEP, 2, POLICY, "6"))])
    flights = worker.turn().flights
    assert {flight.partition.number for flight in flights} == {0, 1}
    for flight in flights:
        ((_, record),) = flight.records()
        assert [type(event) for event in record.events] == [StepCompleted]


def test_what_was_for_a_host_before_the_present_one_is_not_sent():
    worker = Worker(0)
    flight = worker.start(0)
    worker.driver.host_lost("it is gone")
    worker.driver.host_started()
    assert worker.follows(flight, 1).to_hosts == {}
    (again,) = worker.follows(worker.flight(), 1).to_hosts[0]
    assert isinstance(again, Activate)


def test_a_host_that_is_gone_takes_only_what_it_had():
    worker = Worker(0, 1)
    mine, other = worker.activation(0), worker.activation(0, 1, "parcel")
    for item in (mine, other):
        worker.driver.host_sent([AttemptStarted(item, STEP, 1, POLICY)])
    worker.driver.host_lost("it is gone", host=1)
    worker.driver.host_started(1)
    records = worker.flight().records()
    ((_, record),) = records
    assert record.workflow == "parcel"
    assert [type(event) for event in record.events] == [StepFailed]
    (kept, again) = worker.driver.partitions[0].owner.activations()
    assert kept == mine
    assert again > other
    worker.driver.host_sent([Requested(other, RETURNED), Requested(mine, COMPLETED)])
    ((_, record),) = worker.flight().records()
    assert record.workflow == "order", "of an activation that is over nothing is heard"


def test_what_was_for_one_host_is_sent_though_another_is_new():
    worker = Worker(0)
    flight = worker.start(0)
    worker.driver.host_lost("it is gone", host=1)
    worker.driver.host_started(1)
    assert [*worker.follows(flight, 1).to_hosts] == [0]


def test_a_closed_host_is_given_nothing_and_the_others_go_on():
    worker = Worker(0, 1)
    for number, offset in ((0, 0), (1, 0)):
        worker.command(number, offset, "parcel")
    worker.command(0, 1)
    assert worker.driver.turn(0, closed={1}).started == 1
    assert worker.driver.turn(0, 5, closed={1}).started == 0
    assert worker.driver.turn(0, 1, closed={0}).started == 1
    assert worker.driver.turn(0).started == 1


def test_a_step_whose_sql_took_effect_is_completed_though_its_host_is_gone():
    worker = Worker(0)
    worker.driver.host_sent([Requested(worker.activation(0), RETURNED)])
    turn = worker.turn()
    (step,) = turn.steps
    assert turn.flights == [], "the log says nothing before the SQL took effect"
    worker.driver.host_lost("it is gone")
    worker.driver.host_started()
    before = worker.start(0, 1)
    worker.driver.step_settled(step, RETURNED)
    flight = worker.flight()
    ((_, record),) = flight.records()
    assert [type(event) for event in record.events] == [StepCompleted]
    assert worker.follows(before, 2).recorded == [], "its row stays until the log has it"
    assert worker.follows(flight, 3).recorded == [(step.partition, step.commit.id)]


def test_a_step_whose_sql_failed_has_failed():
    worker = Worker(0)
    worker.driver.host_sent([Requested(worker.activation(0), RETURNED)])
    (step,) = worker.turn().steps
    raised = StepRaised(STEP, 1, Failure("Error", "no such table"), POLICY)
    worker.driver.step_settled(step, raised)
    ((_, record),) = worker.flight().records()
    assert [type(event).__name__ for event in record.events] == ["StepFailed"]


def test_sql_that_is_settled_when_its_partition_is_somebody_elses_changes_nothing():
    worker = Worker(0)
    worker.driver.host_sent([Requested(worker.activation(0), RETURNED)])
    (step,) = worker.turn().steps
    worker.driver.remove_partition(0)
    worker.add_partition(0)
    worker.driver.step_settled(step, RETURNED)
    assert worker.turn().flights == []


def test_the_sql_of_a_step_that_is_done_is_not_run():
    worker = Worker(0)
    activation = worker.activation(0)
    worker.driver.host_sent([Requested(activation, COMPLETED), Requested(activation, RETURNED)])
    assert worker.turn().steps == []


def test_with_a_limit_the_most_urgent_of_all_partitions_begins_first():
    worker = Worker(0, 1)
    worker.activation(1)
    worker.driver.host_lost("it is gone")
    worker.driver.turn(0, 0)
    worker.command(0, 0)
    turn = worker.driver.turn(0, 1)
    assert turn.started == 1
    assert worker.driver.partitions[0].owner.activations() == []
    assert len(worker.driver.partitions[1].owner.activations()) == 1


GIVEN_UP: Final = Cancel(STEP.key, (STEP,))
FAILED: Final = Raise(Failure("LookupError", "no use"))


def given_up_amid_its_sql(*commands: CodeCommand) -> tuple[Worker, int, StepTransaction]:
    """A worker whose code gives up a step that Postgres is at, and then asks for these."""
    worker = Worker(0)
    activation = worker.activation(0)
    worker.driver.host_sent([Requested(activation, RETURNED)])
    (step,) = worker.turn().steps
    assert step.partition.owner.sql.mark_sent(step.commit)
    worker.driver.host_sent([Requested(activation, item) for item in (GIVEN_UP, *commands)])
    assert worker.turn().flights == []
    return worker, activation, step


def test_what_gives_up_a_step_waits_for_its_sql_once_postgres_is_at_it():
    worker, _, step = given_up_amid_its_sql(FAILED)
    worker.driver.step_settled(step, RETURNED)
    ((_, record),) = worker.flight().records()
    assert [type(event) for event in record.events] == [StepCompleted]
    ((_, record),) = worker.flight().records()
    assert [type(event) for event in record.events] == [RunErrored]


def test_a_step_whose_sql_fails_after_it_was_given_up_is_not_tried_again():
    worker, _, step = given_up_amid_its_sql()
    raised = StepRaised(STEP, 1, Failure("Error", "no such table"), POLICY)
    worker.driver.step_settled(step, raised)
    worker.follows(worker.flight(), 2)
    ((_, record),) = worker.flight().records()
    assert [type(event).__name__ for event in record.events] == ["EntriesCancelled"]


def test_a_step_may_be_given_up_while_postgres_cannot_be_asked():
    worker, activation, step = given_up_amid_its_sql()
    worker.driver.step_waits(step)
    released = worker.follows(worker.flight(), 2)
    assert released.to_hosts == {0: [AbandonAttempt(activation, STEP.key)]}, (
        "its host waits for it no longer"
    )
    assert not step.partition.owner.sql.mark_sent(step.commit)


def test_nothing_follows_from_a_batch_before_its_partition_is_confirmed():
    worker = Worker(0, 1)
    worker.driver.may_release = lambda number: number == 1
    first, other = worker.start(0), worker.start(1)
    released = worker.follows(first, 1)
    assert (released.answers, released.to_hosts) == ([], {})
    assert _answered(worker.follows(other, 1)) == ["1-0"], "others go on"
    worker.driver.release_confirmed()
    assert worker.driver.take_released().answers == []
    worker.driver.may_release = lambda _: True
    worker.driver.release_confirmed()
    released = worker.driver.take_released()
    assert _answered(released) == ["0-0"]
    assert [type(host) for host in released.to_hosts[0]] == [Activate]


def test_what_waits_to_be_confirmed_is_never_released_of_a_partition_that_is_given_up():
    worker = Worker(0)
    worker.driver.may_release = lambda _: False
    flight = worker.start(0)
    worker.follows(flight, 1)
    (activation,) = worker.driver.partitions[0].owner.activations()
    worker.driver.remove_partition(0)
    worker.add_partition(0)
    worker.driver.may_release = lambda _: True
    worker.driver.release_confirmed()
    released = worker.driver.take_released()
    assert released.answers == []
    assert released.to_hosts == {0: [Evict(activation)]}
