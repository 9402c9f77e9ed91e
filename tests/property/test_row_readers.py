"""A row in binary has what its record has."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings

from headwater.projections.deliveries.row_readers import ROW_READERS, ROW_TYPES
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, Stamp
from headwater.schemas.tables import TABLES, Row, Table
from tests.fakes.binary_rows import read_row
from tests.property.structs import rows, structs

#: Postgres, and Python, know no moments beyond these.
MOMENTS_MS = range(-(2**45), 2**47)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_row_has_its_columns_and_which_delivery_set_each(table: Table):
    @given(row=rows(table))
    @settings(max_examples=30, deadline=None)
    def check(row: Row) -> None:
        named = [stamp for stamp in row.stamps if stamp is not None]
        if any(stamp.sent_at_ms not in MOMENTS_MS for stamp in named):
            return
        result = read_row(ROW_TYPES[table.name], ROW_READERS[table.name](encode_row(table, row)))
        sources = json.loads(result["column_sources"])
        columns = dict(zip(table.column_names, row.stamps, strict=True))
        for name, stamp in columns.items():
            at = sources["columns"].get(name)
            assert (None if at is None else sources["deliveries"][at]) == said(stamp)
        values = (*row.key, *row.values)
        assert [result[name] for name in (*table.key_names, *table.column_names)] == [*values]

    check()


def said(stamp: Stamp | None) -> dict[str, str | int] | None:
    if stamp is None:
        return None
    sent_at = datetime.fromtimestamp(stamp.sent_at_ms / 1000, UTC).isoformat()
    version = {} if stamp.version == 1 else {"version": stamp.version}
    return {"event_id": stamp.event_id, "position": stamp.position, "sent_at": sent_at, **version}


@pytest.mark.parametrize(
    ("table", "kind"),
    [("webhook_outcomes", OutcomeRecorded), ("duplicates", DuplicateDropped)],
)
def test_a_record_that_is_a_row_has_its_milliseconds_as_moments(table: str, kind: type):
    @given(record=structs(kind))
    @settings(max_examples=30, deadline=None)
    def check(record: OutcomeRecorded | DuplicateDropped) -> None:
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        if any(value not in MOMENTS_MS for name, value in fields.items() if name.endswith("_ms")):
            return
        result = read_row(ROW_TYPES[table], ROW_READERS[table](encode(record)))
        for name, value in fields.items():
            if name.endswith("_ms"):
                moment = result[name.removesuffix("_ms")]
                assert (round(moment.timestamp() * 1_000) if moment else 0) == value
            else:
                assert result[name] == value

    check()
