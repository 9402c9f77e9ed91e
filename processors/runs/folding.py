"""Folds a history, whichever engines decide for its runs."""

from typing import Any, Final, get_args

from headwater.processors.runs.engine import Engines, engine_of
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import HistoryAppended, PostsSent, RunEvent, RunStarted

#: What happens to runs; claims and rejections do not.
_RUN_EVENTS: Final = frozenset(get_args(RunEvent))


def fold(engines: Engines, run: Any, record: HistoryAppended) -> Any:  # noqa: ANN401, the engine's
    """Applies a record that counts (see `processors.runs.claims`).

    Shape:  (engines, state of the record's instance or None) -> its state after the record.
    Errors: InvariantViolation for a gap in the runs or in the sequence, and for what cannot follow
            the state.
    """
    expected = record.sequence
    for event in record.events:
        if isinstance(event, RunStarted):
            number = 0 if run is None else run.run_number + 1
            _expect(record, "run", number, record.run_number)
            _expect(record, "sequence", 0, record.sequence)
            run = engine_of(engines, event.kind).begin(run, record)
            expected = 1
        elif type(event) in _RUN_EVENTS:
            if run is None:
                raise InvariantViolation(
                    f"expected RunStarted first, found {type(event).__name__} in the history of "
                    f"{record.workflow}/{record.instance_id}"
                )
            if not isinstance(event, PostsSent):
                _expect(record, "sequence", run.sequence, expected)
                expected += 1
            engine_of(engines, run.kind).apply(run, event, record.at_ms)
    return run


def _expect(record: HistoryAppended, what: str, expected: int, found: int) -> None:
    if found != expected:
        raise InvariantViolation(
            f"expected {what} {expected} next in the history of "
            f"{record.workflow}/{record.instance_id}, found {found}"
        )
