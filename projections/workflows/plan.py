"""Plan the statements that apply a batch of workflow histories, without access to Postgres.

A few statements write all patches. They read only the rows that they write, except for retries,
which copy rows of the previous run. Their order:

1. Loops trim their iterations. Steps that were added and trimmed within the batch have no rows.
2. Rows and changes. Each row has only one of the two.
3. Instances. If an instance was restarted within the batch, its runs follow one by one, because the
row of a new run saves that of the previous run.

A deleted instance has no earlier patches; its rows in Postgres are deleted first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final

from headwater.processors.rows.patches import Patches, Row, Values
from headwater.processors.rows.plan import plan_record
from headwater.processors.runs.durations import KEEP_FOREVER, Retention
from headwater.projections.postgres.writes import OF_INSTANCES
from headwater.projections.projector.projection import (
    LogRecord,
    Plan,
    Projection,
    RowStatement,
    SqlRow,
    refusal,
    row_statements,
)
from headwater.projections.workflows.history import PROJECTION, HistoryRecord, read_history
from headwater.schemas.topics import WORKFLOW_HISTORY
from headwater.schemas.workflow_columns import WorkflowTable
from headwater.schemas.workflow_tables import (
    EVENT,
    GRAPH_EVENT,
    INSTANCE,
    LOG,
    SLOT,
    STEP,
    TOKEN,
    WORKFLOW_TABLES,
)

#: Columns with JSON text, which is stored unchanged or rejected.
_VERBATIM: Final = frozenset(
    column.name for table in WORKFLOW_TABLES for column in table.columns if column.type == "json"
)


def plan_history(records: Iterable[LogRecord], retention: Retention = KEEP_FOREVER) -> Plan:
    """Plan records of `workflow-history`, as returned by `read_history`."""
    patches = Patches(retention)
    refused: list[SqlRow] = []
    for record in records:
        assert isinstance(record, HistoryRecord), "read_history comes first"  # noqa: S101
        if record.appended is None:
            refused.append(refusal(record, record.error))
        else:
            plan_record(patches, record.appended, record.partition, record.offset)
    statements = (*_statements(patches), *row_statements("projection_errors", refused))
    return Plan(statements=statements, unreadable=len(refused))


def _statements(patches: Patches) -> Iterator[RowStatement]:
    """Yield the statements in the order of execution."""
    yield from _write("workflow_owner", [*patches.owners.values()])
    if patches.deleted:
        for name in (*OF_INSTANCES, "rebuild_rows"):
            yield from row_statements(name, [*patches.deleted.values()], delete=True)
    for stage in patches.stages:
        yield from _write("workflow_retries", stage.retries)
        yield from _write("workflow_step_trims", [*stage.trims.values()])
        for table, rows in ((STEP, stage.steps), (TOKEN, stage.tokens), (EVENT, stage.events)):
            yield from _of_rows(table, [row for of_run in rows.values() for row in of_run.values()])
    yield from _write(LOG.name, patches.logs)
    # They read the rows of their tokens.
    yield from _write(GRAPH_EVENT.name, patches.graph_events)
    # Earlier slots are granted before new ones are added.
    slots = patches.slots
    yield from _write("workflow_slot_grants", slots.granted)
    yield from row_statements(SLOT.name, slots.returned, delete=True)
    yield from _write(SLOT.name, [row for rows in slots.rows.values() for row in rows.values()])
    for runs in zip_longest(*patches.instances.values()):
        yield from _of_rows(INSTANCE, [row for row in runs if row is not None])


def _of_rows(table: WorkflowTable, rows: Sequence[Row]) -> Iterator[RowStatement]:
    if rows:
        yield from _write(table.name, [row.values for row in rows if row.is_whole])
        changes = [_masked(table, row.values) for row in rows if not row.is_whole]
        yield from _write(f"{table.name}_changes", changes)


def _masked(table: WorkflowTable, values: Values) -> Values:
    """Return a change with the mask of its columns; those that are null may then be omitted."""
    bits, changed = table.bits, 0
    for name in values:
        changed |= bits[name]
    return {name: value for name, value in values.items() if value is not None} | {
        "changed": changed
    }


def _write(table: str, rows: Sequence[SqlRow]) -> Iterator[RowStatement]:
    return row_statements(table, rows, verbatim=_VERBATIM)


#: Instances, steps, events and log lines of workflows.
WORKFLOWS: Final = Projection(
    name=PROJECTION,
    group="headwater-workflow-projector",
    topics=(WORKFLOW_HISTORY,),
    read=read_history,
    plan=plan_history,
    is_waited_for=True,
)


def workflows_kept(retention: Retention) -> Projection:
    """Return the projection with a retention for ended instances."""
    return replace(WORKFLOWS, plan=partial(plan_history, retention=retention))
