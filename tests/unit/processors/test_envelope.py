"""Where a body goes, and the id of a delivery."""

import pytest

from headwater.processors.input_texts import MAX_ID_CHARS, text_problem
from headwater.processors.providers.envelope import Malformed, Routing, event_id, sent_at_ms
from headwater.processors.providers.terra.envelope import read_envelope
from headwater.processors.providers.terra.provider import TERRA

USER = b'"user": {"user_id": "s-1", "provider": "GARMIN", "reference_id": "user_1", ' + (
    b'"last_webhook_update": "2026-07-01T09:12:33.891000+00:00"}'
)
UPDATED_AT_MS = 1782897153891


def read(body: bytes):
    return TERRA.read(body, {})


@pytest.mark.parametrize(
    ("body", "routing"),
    [
        (b'{"type": "daily", %b}' % USER, Routing("daily", "s-1", "user_1", UPDATED_AT_MS)),
        (b'{"type": "daily", "data": [], %b}' % USER,
         Routing("daily", "s-1", "user_1", UPDATED_AT_MS)),
        (b'{"type": "lab_report", "upload_id": "u", %b}' % USER,
         Routing("lab_report", "u", None, 0)),
        (b'{"upload_id": "upl_1", "data": [{"results": []}]}',
         Routing("lab_report", "upl_1", None, 0)),
        (b'{"type": "", "upload_id": "upl_1", "data": []}',
         Routing("lab_report", "upl_1", None, 0)),
        (b'{"type": "lab_report.completed", "upload_id": "upl_1", "data": {}}',
         Routing("lab_report.completed", "upl_1", None, 0)),
        (b'{"type": "lab_report.completed", "upload_id": "upl_1", "data": {"reference_id": "x"}}',
         Routing("lab_report.completed", "upl_1", None, 0)),
        (b'{"type": "lab_report.completed", "data": {"reference_id": "user_1"}}',
         Routing("lab_report.completed", "", "user_1", 0)),
        (b'{"type": "lab_report.completed", "data": {"reference_id": 5}}',
         Routing("lab_report.completed", "", None, 0)),
        (b'{"type": "lab_report.failed", "data": {}}', Routing("lab_report.failed", "", None, 0)),
        (b'{"type": "s3_payload", "upload_id": "upl_1"}', Routing("s3_payload", "", None, 0)),
        (b'{"type": "auth_cancelled", "reference_id": "user_1"}',
         Routing("auth_cancelled", "", "user_1", 0)),
        (b'{"type": "auth", "user": {}, "reference_id": "user_1"}', Routing("auth", "", None, 0)),
        (b'{"type": "user_reauth", "new_user": {"user_id": "s-2", "reference_id": "user_2"}, %b}'
         % USER.replace(b'"user"', b'"old_user"', 1), Routing("user_reauth", "s-2", "user_2", 0)),
        (b'{"type": "user_reauth", %b}' % USER, Routing("user_reauth", "", None, 0)),
    ],
)  # fmt: skip
def test_an_envelope_says_where_a_delivery_goes(body: bytes, routing: Routing):
    assert read(body) == routing


@pytest.mark.parametrize(
    ("update", "updated_at_ms"),
    [
        (b"null", 0),
        (b'""', 0),
        (b'"yesterday"', 0),
        (b'"2026-07-01"', 0),
        (b'"1969-12-31T23:59:59Z"', 0),
        (b'"1970-01-01T00:00:00.001Z"', 1),
        (b'"1970-01-01T01:00:00+01:00"', 0),
        (b'"2026-07-01T09:12:33.891"', UPDATED_AT_MS),
    ],
)
def test_a_bad_update_time_is_none_for_it_only_breaks_ties(update: bytes, updated_at_ms: int):
    result = read(
        b'{"type": "daily", "user": {"user_id": "s", "last_webhook_update": %b}}' % update
    )
    assert result == Routing("daily", "s", None, updated_at_ms)


@pytest.mark.parametrize("body", [b"{}", b'{"type": ""}', b'{"type": null, "upload_id": "u"}',
                                  b'{"upload_id": "u", "data": {}}', b'{"data": []}'])  # fmt: skip
def test_a_body_without_a_type_that_is_no_lab_report_is_malformed(body: bytes):
    result = read(body)
    assert isinstance(result, Malformed)
    assert result.code == "missing_type"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"type": "%b"}', "type"),
        (b'{"type": "daily", "user": {"user_id": "%b"}}', "user.user_id"),
        (b'{"type": "daily", "user": {"reference_id": "%b"}}', "user.reference_id"),
        (b'{"type": "user_reauth", "new_user": {"user_id": "%b"}}', "new_user.user_id"),
        (b'{"type": "user_reauth", "new_user": {"reference_id": "%b"}}', "new_user.reference_id"),
        (b'{"type": "auth_cancelled", "reference_id": "%b"}', "reference_id"),
        (b'{"type": "lab_report.completed", "upload_id": "%b"}', "upload_id"),
        (b'{"upload_id": "%b", "data": []}', "upload_id"),
    ],
)
@pytest.mark.parametrize("text", [b"a\\u0000b", b"a\\nb", b"a\\u007f", b"\\u0085", b"x" * 257])
def test_an_id_that_cannot_be_stored_is_malformed_and_named(body: bytes, field: str, text: str):
    result = read(body % text)
    assert isinstance(result, Malformed)
    assert result.code == "malformed_id"
    assert result.detail.startswith(f"{field}: expected")


def test_an_id_may_have_256_characters_of_any_script():
    assert text_problem("id", "é" * MAX_ID_CHARS) is None
    assert text_problem("id", "a\u00a0b") is None
    assert text_problem("id", None) is None
    assert text_problem("id", "") is None


def test_half_a_surrogate_pair_is_no_text():
    result = text_problem("id", "a\ud800")
    assert result == "id: expected no control characters, found U+D800 at character 2"


def test_an_event_id_is_the_same_for_the_same_delivery_and_for_no_other():
    parts = [
        ("terra", "daily", "s", b"{}"),
        ("terr", "adaily", "s", b"{}"),
        ("terra", "dailys", "", b"{}"),
        ("terra", "daily", "s", b"{} "),
        ("terra", "daily", "s{}", b""),
        ("terra", "", "dailys", b"{}"),
        ("", "", "", b""),
    ]
    ids = [event_id(*part) for part in parts]
    assert ids == [event_id(*part) for part in parts]
    assert len(set(ids)) == len(parts)
    assert all(len(item) == 32 and int(item, 16) >= 0 for item in ids)


def test_an_event_id_never_changes():
    # Ids are keys of compacted topics: another algorithm would take every delivery for a new one.
    assert event_id("terra", "daily", "s-1", b"{}") == "5172fbb0b5f85db528b559e4cf29efe1"


SIGNED = 1_782_000_000_000


@pytest.mark.parametrize(
    ("header", "ordered"),
    [
        (None, SIGNED),
        (str(SIGNED - 1), SIGNED - 1),
        (str(SIGNED), SIGNED),
        (str(SIGNED + 999), SIGNED + 999),
        (str(SIGNED + 1_000), SIGNED),
        (str(SIGNED - 24 * 3_600_000), SIGNED - 24 * 3_600_000),
        (str(SIGNED - 24 * 3_600_000 - 1), SIGNED),
        ("", SIGNED),
        ("-5", SIGNED),
        ("1.5e12", SIGNED),
        ("\u0661", SIGNED),
        ("9" * 400, SIGNED),
    ],
)
def test_a_retried_delivery_is_ordered_by_when_terra_first_had_it(header: str | None, ordered: int):
    headers = {} if header is None else {"x-terra-ordering-timestamp": header}
    result = read_envelope(b'{"type": "daily", "user": {"user_id": "s"}}', headers)
    assert isinstance(result, Routing)
    assert sent_at_ms(SIGNED, result.ordered_ms) == ordered
