"""Planning topics whose records hang on those before them: each is a statement of its own.

Such a topic has one partition and few records, and everybody folds it. Its rows are decided in
Postgres, as the fold decides, because only Postgres knows here what came before.
"""

from collections.abc import Callable, Iterable

from headwater.projections.projector.plan import Plan, Work, payload
from headwater.projections.projector.records import UNREADABLE, LogRecord, refusal


def one_by_one(records: Iterable[LogRecord], work_of: Callable[[LogRecord], Work]) -> Plan:
    """Plans records, in their order; work_of may raise what `UNREADABLE` names."""
    works: list[Work] = []
    refused = 0
    for record in records:
        try:
            works.append(work_of(record))
        except UNREADABLE as error:
            refused += 1
            works.append(Work("projection_errors", payload([refusal(record, str(error))])))
    return Plan(works=tuple(works), unreadable=refused)
