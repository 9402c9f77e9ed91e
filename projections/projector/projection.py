"""Definition of a projection: which topics become which rows, and how.

Each projection has its own consumer group, connection and offsets, so that none delays another.
`projections.catalogue` lists them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.processors.runs.claims import Claims
from headwater.projections.postgres.binary_rows import RowType
from headwater.projections.projector.plan import Plan
from headwater.projections.projector.records import LogRecord

__all__ = ["Planner", "Projection"]

#: Plans statements for records in partition order; never fails because of a record.
Planner: TypeAlias = Callable[[Iterable[LogRecord]], Plan]


def admit_all(records: Sequence[LogRecord], _: Claims) -> Sequence[LogRecord]:
    """Admit all records: the topic has no claims."""
    return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A projection.

    Attributes:
        name: Name of its offsets in Postgres.
        read: Takes records of one partition and the claims before them, updates the claims, and
            returns the admitted records as `plan` expects them.
        row_types: Types of rows that it plans in binary, by table.
        is_synced: Whether readers follow its tables with cursors.
        is_waited_for: Whether the gateway responds to a write when this projection has applied it.
            Its commits then survive a crash of Postgres, so that a response stays true.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    plan: Planner
    read: Callable[[Sequence[LogRecord], Claims], Sequence[LogRecord]] = admit_all
    row_types: Mapping[str, RowType] = field(default_factory=dict)
    is_synced: bool = False
    is_waited_for: bool = False
