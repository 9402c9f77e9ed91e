"""A record that a projection cannot plan costs itself, and no other of its batch."""

from collections.abc import Iterable
from typing import Any, cast

from headwater.projections.projector.projection import LogRecord, Plan, Projection, RowStatement
from headwater.projections.projector.projector import Projector
from tests.unit.projections.histories import Appended


def plan(records: Iterable[LogRecord]) -> Plan:
    """Plans a statement for all records, as projections do, and has a bug."""
    values = [record.value or b"" for record in records]
    if b"odd" in values:
        raise KeyError("a bug")
    return Plan(statements=(RowStatement("rows", values),), unreadable=values.count(b"unreadable"))


def test_a_record_that_cannot_be_planned_is_refused_and_the_others_are_applied():
    projection = Projection(name="p", group="g", topics=("t",), plan=plan)
    projector = Projector(
        cluster=cast("Any", None),
        store=cast("Any", None),
        projection=projection,
        clock=lambda: 0,
        detector=cast("Any", None),
    )
    values = [b"1", b"odd", b"2", b"unreadable"]
    records = [Appended(0, at, value, topic="t") for at, value in enumerate(values)]
    planned = projector._plan(records)
    rows = [statement.rows for statement in planned.statements if statement.table == "rows"]
    assert rows == [[b"1"], [b"2"], [b"unreadable"]]
    (refused,) = [
        statement.rows for statement in planned.statements if statement.table == "projection_errors"
    ]
    assert "a bug" in str(refused)
    assert planned.unreadable == 2
    whole = projector._plan([records[0], records[2]])
    assert [statement.rows for statement in whole.statements] == [[b"1", b"2"]]
