"""What a projection is: which topics become which rows, and how.

Each has a consumer group, a connection and offsets of its own, so that none waits for another.
`projections.catalogue` lists those that there are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.processors.runs.claims import Claims
from headwater.projections.postgres.binary_rows import RowType
from headwater.projections.projector.plan import Plan
from headwater.projections.projector.records import LogRecord

__all__ = ["Planner", "Projection"]

#: Records, in the order of their partitions, to statements; never fails because of a record.
Planner: TypeAlias = Callable[[Iterable[LogRecord]], Plan]


def all_count(records: Sequence[LogRecord], _: Claims) -> Sequence[LogRecord]:
    """Takes all records as they are: nobody claims their topic."""
    return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A projection; `name` is that of its offsets in Postgres.

    Shape:  `read` takes records of one partition and the claims before them, moves the claims to
            after them and returns the records that count, as `plan` wants them. `row_types` are
            those of the rows that it plans in binary, by table. `is_synced` when readers follow its
            tables by cursor. `is_waited_for` when the gateway answers a write once this projection
            has it: its commits then survive a crash of Postgres, else that crash would take back
            what a client was answered.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    plan: Planner
    read: Callable[[Sequence[LogRecord], Claims], Sequence[LogRecord]] = all_count
    row_types: Mapping[str, RowType] = field(default_factory=dict)
    is_synced: bool = False
    is_waited_for: bool = False
