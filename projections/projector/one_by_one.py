"""Plan topics in which each record depends on earlier ones: one statement per record.

Such a topic has one partition and few records, and every process folds it. Postgres decides the
rows with the same rules as the fold, because only Postgres has the earlier records here.
"""

from collections.abc import Callable, Iterable

from headwater.projections.projector.plan import Plan, Work, payload
from headwater.projections.projector.records import UNREADABLE, LogRecord, refusal


def one_by_one(records: Iterable[LogRecord], work_of: Callable[[LogRecord], Work]) -> Plan:
    """Plan records in order; `work_of` may raise the exceptions in `UNREADABLE`."""
    works: list[Work] = []
    refused = 0
    for record in records:
        try:
            works.append(work_of(record))
        except UNREADABLE as error:
            refused += 1
            works.append(Work("projection_errors", payload([refusal(record, str(error))])))
    return Plan(works=tuple(works), unreadable=refused)
