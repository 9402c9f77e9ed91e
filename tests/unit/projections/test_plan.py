"""What a batch does to Postgres, without Postgres: records in, rows and offsets out."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
import pytest

from headwater.processors.runs.claims import Claims
from headwater.projections.deliveries.plan import DELIVERIES, plan
from headwater.projections.deliveries.row_readers import ROW_TYPES
from headwater.projections.projector.projection import Batch, Plan, Span, admit, payload
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.epochs import CLAIM, CLAIM_KEY, EPOCH
from headwater.schemas.records import DuplicateDropped, OutcomeRecorded, Stamp, UserForgotten
from headwater.schemas.tables import CONNECTIONS, DAILY_SUMMARY, SLEEP_SESSIONS, Row, Table, Value
from tests.fakes.binary_rows import read_row


@dataclass(frozen=True)
class Written:
    topic: str
    key: bytes | None
    value: bytes | None
    offset: int = 0
    partition: int = 0
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()


FIRST = Stamp(0, 1_767_225_600_123, 0, "e1", 3, 17)
LATER = Stamp(1, 1_767_225_700_000, 0, "e2", 4, 1)


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def row(table: Table, key: tuple[str, ...], values: dict[str, tuple[Value, Stamp]]) -> Row:
    cells = [values.get(column.name, (None, None)) for column in table.columns]
    return Row(key, tuple(value for value, _ in cells), tuple(by for _, by in cells))


def written(table: Table, row: Row, offset: int = 0) -> Written:
    return Written(table.topic, table.row_key(row.key), encode_row(table, row), offset)


def day(steps: int, offset: int = 0, date: str = "2026-01-01") -> Written:
    key = ("user_1", "garmin", date)
    return written(DAILY_SUMMARY, row(DAILY_SUMMARY, key, {"steps": (steps, FIRST)}), offset)


def outcome(status: str = "processed", offset: int = 0) -> Written:
    record = OutcomeRecorded(
        event_id="e1",
        request_id="r1",
        source="terra",
        type="daily",
        subject="t",
        status=status,
        reason="",
        rows=1,
        partition=3,
        offset=17,
        received_at_ms=1,
        admitted_at_ms=2,
        at_ms=3,
        stage="normalize",
        position="events/2@9",
    )
    return Written("webhook-outcomes", b"e1", encode(record), offset)


def duplicate(offset: int = 0) -> Written:
    record = DuplicateDropped(
        request_id="r1",
        event_id="e1",
        partition=3,
        offset=18,
        first_offset=17,
        received_at_ms=1,
        at_ms=2,
    )
    return Written("traces", b"r1", encode(record), offset)


def rows(planned: Plan, table: str, *, delete: bool = False) -> list[dict[str, object]]:
    result: list[dict[str, object]] = []
    for row_statement in planned.statements:
        if row_statement.table != table or row_statement.delete is not delete:
            continue
        if isinstance(row_statement.rows, str):
            result += json.loads(row_statement.rows)
        else:
            result += [read_row(ROW_TYPES[table], row) for row in row_statement.rows]
    return result


def test_a_row_names_the_delivery_of_each_of_its_columns_once():
    key = ("user_1", "garmin", "2026-01-01")
    values = {"steps": (5, FIRST), "strain": (1.5, FIRST), "resting_heart_rate": (50.0, LATER)}
    [result] = rows(
        plan([written(DAILY_SUMMARY, row(DAILY_SUMMARY, key, values))]), "daily_summary"
    )
    assert (result["user_id"], result["datetime"], result["steps"]) == ("user_1", "2026-01-01", 5)
    assert result["sleep_score"] is None
    assert json.loads(str(result["column_sources"])) == {
        "deliveries": [
            {
                "event_id": "e1",
                "position": "webhooks/3@17",
                "sent_at": "2026-01-01T00:00:00.123000+00:00",
            },
            {
                "event_id": "e2",
                "position": "webhooks/4@1",
                "sent_at": "2026-01-01T00:01:40+00:00",
            },
        ],
        "columns": {"steps": 0, "strain": 0, "resting_heart_rate": 1},
    }


@pytest.mark.parametrize(
    ("active", "deactivated_at"),
    [(False, datetime(2026, 1, 1, 0, 1, 40, tzinfo=UTC)), (True, None)],
)
def test_a_connection_is_deactivated_when_the_delivery_that_said_so_was_sent(
    active: bool, deactivated_at: datetime | None
):
    values: dict[str, tuple[Value, Stamp]] = {"user_id": ("u", FIRST), "active": (active, LATER)}
    planned = plan([written(CONNECTIONS, row(CONNECTIONS, ("t1",), values))])
    [result] = rows(planned, "terra_connections")
    assert result["deactivated_at"] == deactivated_at


def test_only_the_newest_record_of_a_key_is_written():
    planned = plan([day(1), day(2, 1), day(9, 2, "2026-01-02"), day(3, 3)])
    assert sorted(result["steps"] for result in rows(planned, "daily_summary")) == [3, 9]


def test_a_tombstone_deletes_and_a_later_row_writes_again():
    lost = Written("daily-summary", b'["user_1","garmin","2026-01-01"]', None, 1)
    planned = plan([day(1), lost])
    assert rows(planned, "daily_summary") == []
    assert rows(planned, "daily_summary", delete=True) == [
        {"user_id": "user_1", "source": "garmin", "datetime": "2026-01-01"}
    ]
    planned = plan([lost, day(1, 2)])
    assert len(rows(planned, "daily_summary")) == 1
    assert rows(planned, "daily_summary", delete=True) == []


def test_tombstones_of_outcomes_and_duplicates_delete_by_their_plain_key():
    planned = plan(
        [
            Written("webhook-outcomes", b"e1", None),
            duplicate(),
            Written("traces", b"r1", None),
        ]
    )
    assert rows(planned, "webhook_outcomes", delete=True) == [{"event_id": "e1"}]
    assert rows(planned, "duplicates", delete=True) == [{"request_id": "r1"}]
    assert rows(planned, "duplicates") == []


def test_outcomes_and_duplicates_are_rows_as_they_are():
    planned = plan([outcome(), duplicate()])
    [result] = rows(planned, "webhook_outcomes")
    assert result == {
        "event_id": "e1",
        "request_id": "r1",
        "source": "terra",
        "type": "daily",
        "subject": "t",
        "user_id": None,
        "status": "processed",
        "reason": "",
        "rows": 1,
        "rejected": 0,
        "rejected_fields": None,
        "rejected_fields_total": 0,
        "partition": 3,
        "offset": 17,
        "received_at": moment(1),
        "admitted_at": moment(2),
        "parked_at": None,
        "released_at": None,
        "waited_for": "",
        "released_by": "",
        "at": moment(3),
        "stage": "normalize",
        "position": "events/2@9",
        "replay": "",
        "trace": "",
    }
    [result] = rows(planned, "duplicates")
    assert (result["request_id"], result["offset"], result["first_offset"]) == ("r1", 18, 17)


def test_an_unreadable_record_is_kept_and_does_not_hide_the_one_before_it():
    bad = Written("daily-summary", b'["user_1","garmin","2026-01-01"]', b"\x00\x01", 7)
    planned = plan([day(1), bad])
    assert planned.unreadable == 1
    assert [result["steps"] for result in rows(planned, "daily_summary")] == [1]
    [error] = rows(planned, "projection_errors")
    assert (error["topic"], error["partition"], error["offset"]) == ("daily-summary", 0, 7)
    assert error["value"] == "AAE="
    assert "Confluent wire format" in str(error["error"])


@pytest.mark.parametrize(
    "record",
    [
        Written("traces", b"r1", b"nothing of ours"),
        Written("traces", b"\xff", None),
        Written("webhook-outcomes", b"e1", duplicate().value),
        Written("daily-summary", b"no json", None),
        Written("daily-summary", b'["too","short"]', None),
        Written("unheard-of", b"k", b"v"),
        Written("dead-letters", b"k", b"v", headers=(("headwater.dead_at_ms", b"soon"),)),
        Written("dead-letters", b"k", b"v", headers=(("headwater.dead_at_ms", b"9" * 30),)),
        Written("dead-letters", b"k", b"v", headers=(("headwater.replayed", b"nowhere"),)),
    ],
)
def test_whatever_a_record_holds_planning_goes_on(record: Written):
    planned = plan([record, day(4)])
    assert planned.unreadable == 1
    assert len(rows(planned, "daily_summary")) == 1


def test_a_header_that_names_no_epoch_stops_nobody():
    foreign = replace(day(1), headers=((EPOCH, b"soon"),))
    claim = Written("daily-summary", CLAIM_KEY, b"", 1, headers=((EPOCH, b"7"), (CLAIM, b"me")))
    stale = replace(day(2, 2), headers=((EPOCH, b"6"),))
    claims = Claims()
    assert DELIVERIES.read([foreign, claim, stale], claims) == [foreign]
    assert claims.epoch == 7


def test_a_moment_that_no_calendar_has_makes_a_row_unreadable():
    never = Stamp(0, 2**62, 0, "e1", 0, 0)
    key = ("user_1", "garmin", "2026-01-01")
    bad = written(DAILY_SUMMARY, row(DAILY_SUMMARY, key, {"steps": (1, never)}))
    assert plan([bad]).unreadable == 1


def test_a_written_out_nul_in_json_text_stays_as_it_is():
    key = ("user_1", "garmin", "2026-01-01T00:00:00Z")
    raw = '{"a": "\\u0000", "b": "\\\\u0000"}'
    planned = plan([written(SLEEP_SESSIONS, row(SLEEP_SESSIONS, key, {"raw": (raw, FIRST)}))])
    assert [result["raw"] for result in rows(planned, "sleep_sessions")] == [raw]
    assert json.loads(payload([{"x": "\x00\x00\\\x00"}])) == [{"x": "\ufffd\ufffd\\\ufffd"}]


def test_a_dead_letter_keeps_its_bytes_and_tells_its_story():
    headers = {
        "mine": b"\xff",
        "__connect.errors.topic": b"webhooks",
        "__connect.errors.partition": b"3",
        "__connect.errors.offset": b"17",
        "__connect.errors.stage": b"admit",
        "__connect.errors.exception.message": b"expected x, found y",
        "headwater.reason": b"undecodable_record",
        "headwater.dead_at_ms": b"1767225600000",
        "headwater.event_id": b"",
        "headwater.request_id": b"r1",
        "headwater.key": b"\x00k",
    }
    record = Written("dead-letters", b"its own", None, 5, 2, headers=tuple(headers.items()))
    [result] = rows(plan([record]), "dead_letters")
    kept = result.pop("headers")
    assert kept[0] == ["mine", "\ufffd"]
    assert result == {
        "partition": 2,
        "offset": 5,
        "event_id": None,
        "request_id": "r1",
        "key": "AGs=",
        "value": None,
        "original_topic": "webhooks",
        "original_partition": 3,
        "original_offset": 17,
        "reason": "undecodable_record",
        "message": "expected x, found y",
        "stage": "admit",
        "rule": None,
        "dead_at_ms": 1_767_225_600_000,
    }


def test_a_marker_is_no_dead_letter():
    headers = (("headwater.replayed", b"2@5"), ("headwater.replayed_at_ms", b"99"))
    planned = plan([Written("dead-letters", b"k", None, headers=headers)])
    assert rows(planned, "dead_letters") == []
    assert rows(planned, "dead_letter_replays") == [
        {"partition": 2, "offset": 5, "replayed_at_ms": 99}
    ]


def removed(planned: Plan) -> list[object]:
    """The keys of the rows that a plan deletes, if it does nothing else."""
    assert all(row_statement.delete for row_statement in planned.statements)
    return [
        key for row_statement in planned.statements for key in json.loads(str(row_statement.rows))
    ]


def test_a_dead_letter_that_is_removed_is_no_row_also_in_the_batch_that_brings_it():
    key = b'["webhooks",3,17,"no_user",""]'
    headers = (("headwater.reason", b"no_user"), ("__connect.errors.topic", b"webhooks"))
    letter = Written("dead-letters", key, b"v", 5, 2, headers=headers)
    planned = plan([letter, Written("dead-letters", key, None, 6, 2)])
    assert removed(planned) == [
        {"topic": "webhooks", "partition": 3, "offset": 17, "reason": "no_user", "rule": ""}
    ]


def test_an_effect_that_is_removed_is_no_row():
    planned = plan([Written("effects", b'["e1","rule"]', None)])
    assert removed(planned) == [{"event_id": "e1", "name": "rule"}]


def test_a_large_table_is_written_in_several_statements():
    many = [day(n, n, f"{1000 + n}-01-01") for n in range(2_500)]
    sizes = [len(row_statement.rows) for row_statement in plan(many).statements]
    assert sizes == [1_000, 1_000, 500]


# --- what Postgres already has --------------------------------------------------------------


def batch(*records: Written, **spans: Span) -> Batch:
    named = {(topic.replace("_", "-"), 0): span for topic, span in spans.items()}
    return Batch(records=records, spans=named, plan=plan(records))


def test_a_new_batch_is_applied_whole():
    admitted = admit(batch(day(1, 5), daily_summary=Span(4, 6)), {("daily-summary", 0): 4})
    assert admitted.records is None
    assert admitted.offsets == {("daily-summary", 0): 6}
    assert not admitted.behind


def test_records_below_the_stored_offset_are_left_out():
    records = (day(1, 4), day(2, 5), outcome(offset=0))
    old = batch(*records, daily_summary=Span(4, 6), webhook_outcomes=Span(0, 1))
    admitted = admit(old, {("daily-summary", 0): 5, ("webhook-outcomes", 0): 1})
    assert admitted.records == [records[1]]
    assert admitted.offsets == {("daily-summary", 0): 6}


@pytest.mark.parametrize("stored", [{}, {("daily-summary", 0): 3}])
def test_a_batch_that_would_leave_a_gap_is_not_applied(stored: dict[tuple[str, int], int]):
    admitted = admit(batch(day(1, 4), daily_summary=Span(4, 5)), stored)
    assert admitted.records == []
    assert admitted.offsets == {}
    assert admitted.behind == {("daily-summary", 0)}


def test_a_wipe_whose_order_was_not_read_yet_is_no_wipe():
    accepted = UserForgotten(
        wipe_id="", digests=["d"], names=[], fence=[], found=[], counts=[], ordered_at_ms=0
    )
    ordered = msgspec.structs.replace(accepted, wipe_id="w", ordered_at_ms=5)
    records = [Written("wipes", b"d", encode(record)) for record in (accepted, ordered)]
    assert rows(plan(records[:1]), "wipes") == []
    assert [row["wipe_id"] for row in rows(plan(records), "wipes")] == ["w"]
