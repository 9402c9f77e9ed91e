"""Taking over a partition: from its log to the states of its instances."""

from collections.abc import Iterable

from processors.replay.appliers import fold
from processors.replay.state import CodeRun
from processors.runs.claims import Claims
from schemas.history import HistoryAppended, instance_key


def restore(
    claims: Claims,
    records: Iterable[tuple[int, HistoryAppended]],
    states: dict[str, CodeRun] | None = None,
) -> dict[str, CodeRun]:
    """Folds records, in the order of their offsets, into states by instance key.

    Shape:  claims and states are what was folded before, and are changed in place.
    """
    states = {} if states is None else states
    for offset, record in records:
        if claims.admit(offset, record):
            key = instance_key(record.workflow, record.instance_id)
            state = fold(states.get(key), record)
            if state is not None:
                states[key] = state
    return states
