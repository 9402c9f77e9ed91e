"""Plan rows from the records of `audit`, without access to Postgres.

The hash of a row depends on the previous row, which only Postgres has here: the statement computes
it (`audit_chain`) from the canonical text of each entry.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from headwater.projections.audit.chain import canonical, entry_of
from headwater.projections.projector.plan import Plan, RowStatement, payload, row_statements
from headwater.projections.projector.projection import Projection
from headwater.projections.projector.records import UNREADABLE, LogRecord, SqlRow, refusal
from headwater.schemas.audit import OperationAudited
from headwater.schemas.codec import decode
from headwater.schemas.topics import AUDIT as TOPIC

__all__ = ["AUDIT", "plan_entries"]


def plan_entries(records: Iterable[LogRecord]) -> Plan:
    """Plan records of `audit`."""
    rows: list[SqlRow] = []
    refused: list[RowStatement] = []
    for record in records:
        try:
            entry = entry_of(decode(record.value, OperationAudited), record.offset)
        except UNREADABLE as error:
            refused.append(
                RowStatement("projection_errors", payload([refusal(record, str(error))]))
            )
        else:
            rows.append(msgspec.structs.asdict(entry) | {"entry": canonical(entry)})
    return Plan(statements=(*row_statements("audit_logs", rows), *refused), unreadable=len(refused))


#: Projects the audit log.
AUDIT: Final = Projection(
    name="audit",
    group="headwater-audit-projector",
    topics=(TOPIC,),
    plan=plan_entries,
)
