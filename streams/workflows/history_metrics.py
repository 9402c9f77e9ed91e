"""Counts runs, steps and rejections for monitors, once per durable batch of records."""

from collections import defaultdict
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from headwater.monitoring import catalog
from headwater.monitoring.metrics import Counter
from headwater.schemas import failures
from headwater.schemas.history import (
    CommandRejected,
    HistoryAppended,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    StepCompleted,
    StepFailed,
    TokenCompleted,
    TokenFailed,
)

#: The metric of an event, and its labels after the workflow.
_COUNTED: Final = MappingProxyType[type, tuple[Counter, tuple[str, ...]]](
    {
        RunStarted: (catalog.RUNS_STARTED, ()),
        RunCompleted: (catalog.RUNS_ENDED, ("complete",)),
        RunErrored: (catalog.RUNS_ENDED, ("errored",)),
        RunTerminated: (catalog.RUNS_ENDED, ("terminated",)),
        StepCompleted: (catalog.STEPS, ("complete",)),
        TokenCompleted: (catalog.STEPS, ("complete",)),
        StepFailed: (catalog.ATTEMPTS_FAILED, ()),
        TokenFailed: (catalog.ATTEMPTS_FAILED, ()),
    }
)
#: Failures of Headwater's own. Names of others are those of authors' classes, of any number.
_OWN_FAILURES: Final = frozenset(
    value for name, value in vars(failures).items() if name.isupper() and isinstance(value, str)
)
_OF_AUTHOR: Final = "author"


def count_records(records: Iterable[HistoryAppended]) -> None:
    """Count what durable records of a partition have recorded.

    Steps are nearly all of it, so an event costs no call, and steps of one duration share theirs.
    """
    counts: defaultdict[tuple[type, str], int] = defaultdict(int)
    took: defaultdict[tuple[str, int], int] = defaultdict(int)
    for record in records:
        workflow = record.workflow
        events: Iterable[Any] = record.events  # A check of their types would be a call.
        for event in events:
            kind = event.__class__
            if kind in _COUNTED:
                counts[kind, workflow] += 1
                if kind is StepCompleted:
                    took[workflow, record.at_ms - event.reached_at_ms] += 1
                elif kind is not RunStarted:
                    _count_failure(event, workflow)
            elif kind is CommandRejected:
                catalog.COMMANDS_REJECTED.add((event.code,))
    for (kind, workflow), number in counts.items():
        metric, further = _COUNTED[kind]
        metric.add((workflow, *further), number)
    for (workflow, ms), number in took.items():
        catalog.STEP_SECONDS.observe(ms / 1_000, (workflow,), number)


def _count_failure(event: object, workflow: str) -> None:
    """Count a step or run that has failed for good."""
    match event:
        case StepFailed(retry_at_ms=None) | TokenFailed(retry_at_ms=None):
            catalog.STEPS.add((workflow, "failed"))
        case RunErrored(failure=failure):
            name = failure.name if failure.name in _OWN_FAILURES else _OF_AUTHOR
            catalog.RUN_FAILURES.add((name,))
        case _:
            pass
