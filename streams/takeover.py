"""Taking over a partition: from its log to its instances."""

from collections.abc import Iterable, Mapping

from processors.replay.appliers import fold
from processors.runs.claims import Claims
from schemas.history import HistoryAppended, instance_key
from streams.instances import Instances


def restore(
    claims: Claims,
    records: Iterable[tuple[int, HistoryAppended]],
    instances: Instances,
    read_from: Mapping[str, int] | None = None,
) -> None:
    """Folds records, in the order of their offsets, into the instances.

    Shape:  claims and instances are what was folded before, and are changed in place; read_from is
            the offset by instance key from which on its events are not yet in its state.
    """
    read_from = read_from or {}
    for offset, record in records:
        if claims.admit(offset, record):
            key = instance_key(record.workflow, record.instance_id)
            if offset < read_from.get(key, 0):
                continue
            hand = instances.find(key)
            state = fold(hand.run if hand else None, record)
            if hand is not None and state is not None:
                hand.run = state
            elif state is not None:
                instances.add(key, state)
