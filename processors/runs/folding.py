"""Fold a history, whichever engines decide its runs."""

from typing import Any, Final, get_args

from headwater.processors.runs.engine import Engines, engine_of
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.history import HistoryAppended, PostsSent, RunEvent, RunStarted

#: Events of runs; claims and rejections are not among them.
_RUN_EVENTS: Final = frozenset(get_args(RunEvent))


def fold(engines: Engines, run: Any, record: HistoryAppended) -> Any:  # noqa: ANN401, the engine's
    """Apply a record that counts (see `processors.runs.claims`).

    Args:
        engines: The engines by kind.
        run: State of the record's instance, or None.
        record: The record.

    Returns:
        The state after the record.

    Raises:
        InvariantViolation: There is a gap in the runs or in the sequence, or an event does not fit
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


def _expect(record: HistoryAppended, what: str, expected: int, actual: int) -> None:
    if actual != expected:
        raise InvariantViolation(
            f"expected {what} {expected} next in the history of "
            f"{record.workflow}/{record.instance_id}, found {actual}"
        )
