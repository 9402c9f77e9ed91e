"""What the durable records of workflows add to the metrics."""

from collections.abc import Callable

from headwater.monitoring import catalog
from headwater.monitoring.metrics import Counter, Labels
from headwater.schemas.failures import RUN_TOO_LARGE
from headwater.schemas.history import (
    CommandRejected,
    Failure,
    HistoryAppended,
    LogEvent,
    RunCompleted,
    RunErrored,
    RunStarted,
    StepCompleted,
    StepFailed,
)
from headwater.streams.workflows.history_metrics import count_records


def record(*events: LogEvent, workflow: str = "counted", at_ms: int = 10_000) -> HistoryAppended:
    return HistoryAppended(
        workflow=workflow, instance_id="one", run_number=0, sequence=1, epoch=1, cause=-1,
        at_ms=at_ms, events=events,
    )  # fmt: skip


def completed(reached_at_ms: int) -> StepCompleted:
    return StepCompleted(
        key="a", name="a", ordinal=1, reached_at_ms=reached_at_ms, attempt=1, max_attempts=1,
        timeout_ms=1_000, result="1",
    )  # fmt: skip


def failed(retry_at_ms: int | None) -> StepFailed:
    return StepFailed(
        key="a", name="a", ordinal=1, reached_at_ms=0, attempt=1, max_attempts=2, timeout_ms=1_000,
        failure=Failure("ValueError", "no"), retry_at_ms=retry_at_ms,
    )  # fmt: skip


def added(counter: Counter, labels: Labels, act: Callable[[], None]) -> float:
    before = counter.values().get(labels, 0)
    act()
    return counter.values().get(labels, 0) - before


def test_steps_are_counted_with_their_duration():
    records = [record(completed(9_900), completed(9_900)), record(completed(4_000))]
    assert added(catalog.STEPS, ("counted", "complete"), lambda: count_records(records)) == 3
    distribution = catalog.STEP_SECONDS.distributions()["counted",]
    counts = {bound: count for bound, count, _ in distribution.buckets}
    assert (counts["0.05"], counts["0.1"], counts["5.0"], counts["10.0"]) == (0, 2, 2, 3)


def test_a_failed_attempt_is_a_failed_step_only_if_it_is_the_last():
    attempts = [record(failed(20_000)), record(failed(None))]
    assert added(catalog.ATTEMPTS_FAILED, ("counted",), lambda: count_records(attempts)) == 2
    assert added(catalog.STEPS, ("counted", "failed"), lambda: count_records(attempts)) == 1


def test_runs_are_counted_by_their_end_and_failures_of_authors_have_one_label():
    begun = record(RunStarted(params="{}", seed="1"))
    assert added(catalog.RUNS_STARTED, ("counted",), lambda: count_records([begun])) == 1
    ended = record(RunCompleted("1"))
    labels = ("counted", "complete")
    assert added(catalog.RUNS_ENDED, labels, lambda: count_records([ended])) == 1
    too_large = record(RunErrored(Failure(RUN_TOO_LARGE, "large")))
    assert added(catalog.RUN_FAILURES, (RUN_TOO_LARGE,), lambda: count_records([too_large])) == 1
    own = record(RunErrored(Failure("MyError", "mine")))
    assert added(catalog.RUN_FAILURES, ("author",), lambda: count_records([own])) == 1
    assert ("MyError",) not in catalog.RUN_FAILURES.values()


def test_rejections_are_counted_by_code():
    rejected = record(CommandRejected("STALE", "stale"), workflow="")
    act = lambda: count_records([rejected])  # noqa: E731
    assert added(catalog.COMMANDS_REJECTED, ("STALE",), act) == 1
