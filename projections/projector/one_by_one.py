"""Plan topics in which each record depends on earlier ones: one statement per record.

Such a topic has one partition and few records, and every process folds it. Postgres decides the
rows with the same rules as the fold, because only Postgres has the earlier records here.
"""

from collections.abc import Callable, Iterable

from headwater.projections.projector.plan import Plan, RowStatement, payload
from headwater.projections.projector.records import UNREADABLE, LogRecord, refusal


def one_by_one(
    records: Iterable[LogRecord], statement_of: Callable[[LogRecord], RowStatement]
) -> Plan:
    """Plan records in order; `statement_of` may raise the exceptions in `UNREADABLE`."""
    statements: list[RowStatement] = []
    refused = 0
    for record in records:
        try:
            statements.append(statement_of(record))
        except UNREADABLE as error:
            refused += 1
            statements.append(
                RowStatement("projection_errors", payload([refusal(record, str(error))]))
            )
    return Plan(statements=tuple(statements), unreadable=refused)
