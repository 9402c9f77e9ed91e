"""Progress of a projection, as monitors see it."""

from headwater.monitoring.catalog import PROJECTED, PROJECTION_AGE, PROJECTION_LAG
from headwater.monitoring.monitor import Monitor
from headwater.projections.projector.progress import Progress
from headwater.projections.projector.projection import Batch, Partition, Plan, Span

FIRST, SECOND = ("sleep", 0), ("sleep", 1)


class Watched:
    """A progress with positions, ends and a clock that tests set."""

    def __init__(self) -> None:
        self.positions: dict[Partition, int] = {}
        self.ends: dict[Partition, int] = {}
        self.now_ms = 100_000
        self.progress = Progress("watched", self.positions, self.lags, lambda: self.now_ms)
        self.monitor = Monitor()
        self.progress.report_to(self.monitor)

    def lags(self) -> dict[Partition, int]:
        return {tp: self.progress.lag(tp, self.ends.get(tp, 0)) for tp in self.positions}

    def assign(self, partition: Partition, position: int, first: int, end: int) -> None:
        self.positions[partition] = position
        self.progress.begin(partition, first, end)

    def apply(self, partition: Partition, end: int, times: tuple[int, int]) -> None:
        start, self.positions[partition] = self.positions[partition], end
        plan = Plan(statements=(), unreadable=0)
        batch = Batch(
            records=(), spans={partition: Span(start, end)}, plan=plan, times={partition: times}
        )
        self.progress.applied(batch, end - start, 0, 0.1)

    def measured(self) -> tuple[float, float]:
        self.monitor.take_measures()
        return (PROJECTION_LAG.values()["watched",], PROJECTION_AGE.values()["watched",])


def test_a_projection_is_ready_when_it_has_what_was_there_at_its_assignment():
    watched = Watched()
    state = watched.progress.state
    assert state() == "waiting for an assignment"
    watched.progress.assign([FIRST, SECOND])
    assert state() == "2 of 2 partitions to catch up"
    watched.assign(FIRST, 5, 0, 9)
    watched.assign(SECOND, 3, 0, 3)
    assert state() == "1 of 2 partitions to catch up"
    watched.ends[FIRST] = 20
    watched.apply(FIRST, 9, (1, 2))
    assert state() == "ok", "what came later does not count"
    watched.progress.problem = "expected Postgres"
    assert state() == "waiting for Kafka or Postgres"
    watched.progress.problem = ""
    watched.progress.assign(None)
    assert state() == "waiting for an assignment"


def test_a_projection_without_partitions_is_ready():
    watched = Watched()
    watched.progress.assign([])
    assert watched.progress.state() == "ok"


def test_records_that_the_topic_no_longer_has_are_not_waited_for():
    watched = Watched()
    watched.progress.assign([FIRST])
    watched.assign(FIRST, 5, 9, 9)
    assert watched.progress.state() == "ok"
    assert watched.measured() == (0, 0)


def test_the_age_of_the_rows_is_that_of_the_oldest_record_to_apply():
    watched = Watched()
    watched.progress.assign([FIRST])
    watched.assign(FIRST, 5, 0, 5)
    assert watched.measured() == (0, 0)
    before = PROJECTED.values().get(("watched",), 0)
    watched.now_ms += 3_000
    watched.ends[FIRST] = 8  # It was not there three seconds ago.
    assert watched.measured() == (3, 3)
    watched.now_ms += 4_000
    watched.apply(FIRST, 7, (100_500, 101_000))
    assert watched.measured() == (1, 6)
    watched.apply(FIRST, 8, (102_000, 102_000))
    assert watched.measured() == (0, 0)
    assert PROJECTED.values()["watched",] - before == 3
