"""Authentications become connections, and every other type is skipped."""

from typing import Any

import pytest

from headwater.processors.input_texts import rfc3339
from headwater.processors.providers.results import Failed, Normalized, NormalizeResult, Skipped
from headwater.processors.providers.terra.provider import TERRA
from headwater.schemas.tables import CONNECTIONS
from tests.unit.processors.deliveries import RECEIVED_AT_MS, USER, normalized

OPEN = {
    "user_id": "user_1",
    "provider": "GARMIN",
    "reference_id": "user_1",
    "scopes": "SLEEP,DAILY",
    "active": True,
}
CLOSED = {
    "user_id": "user_1",
    "provider": "GARMIN",
    "active": False,
    "last_deactivated_at": rfc3339(RECEIVED_AT_MS - 500),
}


def rows(result: NormalizeResult):
    assert isinstance(result, Normalized)
    assert all(update.table is CONNECTIONS for update in result.updates)
    assert all(update.stamp.rank == 0 for update in result.updates)
    return {update.key: dict(update.values) for update in result.updates}


@pytest.mark.parametrize(
    ("type_", "status"),
    [
        ("auth", "success"),
        ("auth", None),
        ("auth_success", None),
        ("auth_success", "success"),
    ],
)
def test_an_authentication_opens_a_connection(type_: str, status: str | None):
    result = normalized(type_, {"type": type_, "status": status, "user": USER})
    assert rows(result) == {("s-1",): OPEN}


@pytest.mark.parametrize("status", ["error", "warning", ""])
def test_an_authentication_that_failed_is_skipped(status: str | None):
    assert normalized("auth", {"type": "auth", "status": status}) == Skipped("auth_failed")


@pytest.mark.parametrize("type_", ["deauth", "access_revoked"])
def test_a_connection_is_closed_with_a_whole_row(type_: str):
    result = normalized(type_, {"type": type_, "status": "warning", "user": USER})
    assert rows(result) == {("s-1",): CLOSED}


@pytest.mark.parametrize(
    ("type_", "row"),
    [("auth", OPEN), ("deauth", CLOSED), ("access_revoked", CLOSED)],
)
def test_a_user_who_was_looked_up_in_the_row_is_not_said_again(type_: str, row: dict[str, Any]):
    result = normalized(type_, {"type": type_, "user": USER}, user_id="user_looked_up")
    assert rows(result) == {("s-1",): {name: row[name] for name in row if name != "user_id"}}


def test_a_reauthentication_tells_both_connections_whose_they_are():
    body = {"type": "user_reauth", "new_user": USER | {"user_id": "s-2"}, "old_user": USER}
    result = rows(normalized("user_reauth", body, user_id="user_looked_up"))
    assert [value["user_id"] for value in result.values()] == ["user_looked_up"] * 2


def test_a_reauthentication_opens_one_connection_and_closes_the_other():
    body = {
        "type": "user_reauth",
        "status": "warning",
        "new_user": USER | {"user_id": "s-2"},
        "old_user": USER,
    }
    assert rows(normalized("user_reauth", body)) == {("s-2",): OPEN, ("s-1",): CLOSED}


@pytest.mark.parametrize("old", [None, {}, {"user_id": ""}, USER])
def test_a_reauthentication_without_another_connection_closes_none(old: dict[str, str] | None):
    body = {"type": "user_reauth", "new_user": USER, "old_user": old}
    assert rows(normalized("user_reauth", body)) == {("s-1",): OPEN}


def test_what_the_producer_leaves_out_is_not_guessed():
    result = normalized("auth", {"type": "auth", "user": {"user_id": "s-1"}})
    assert rows(result) == {
        ("s-1",): dict.fromkeys(OPEN) | {"user_id": "user_1", "active": True},
    }


@pytest.mark.parametrize(
    ("type_", "body", "code", "field"),
    [
        ("auth", {}, "missing_user_id", "user.user_id"),
        ("auth", {"user": {"user_id": ""}}, "missing_user_id", "user.user_id"),
        ("deauth", {}, "missing_user_id", "user.user_id"),
        ("user_reauth", {"user": USER}, "missing_user_id", "new_user.user_id"),
        ("auth", {"user": USER | {"user_id": "s\x00"}}, "malformed_id", "user.user_id"),
        ("auth", {"user": USER | {"provider": "G\x00"}}, "malformed_id", "user.provider"),
        ("auth", {"user": USER | {"reference_id": "\n"}}, "malformed_id", "user.reference_id"),
        ("auth", {"user": USER | {"scopes": "S" * 5000}}, "malformed_id", "user.scopes"),
        (
            "user_reauth",
            {"new_user": USER, "old_user": USER | {"user_id": "s-0", "provider": "\x00"}},
            "malformed_id",
            "old_user.provider",
        ),
    ],
)
def test_a_connection_that_cannot_be_stored_fails_and_names_the_field(
    type_: str, body: dict[str, Any], code: str, field: str
):
    result = normalized(type_, {"type": type_} | body)
    assert isinstance(result, Failed)
    assert result.code == code
    assert result.detail.startswith(f"{field}: expected ")


@pytest.mark.parametrize("type_", sorted(TERRA.skipped))
def test_a_type_without_a_table_is_skipped_by_its_name(type_: str):
    assert normalized(type_, {"type": type_, "user": USER, "data": []}) == Skipped(type_)


@pytest.mark.parametrize("type_", ["planned_workout", "lab_reports", "lab_report.x", "Daily"])
def test_a_type_that_is_not_known_is_skipped_as_such(type_: str):
    assert normalized(type_, {"type": type_, "user": USER}) == Skipped(f"unknown_type:{type_}")


def test_a_delivery_without_a_user_fails():
    result = normalized("auth", {"type": "auth", "user": USER}, user_id=None)
    assert isinstance(result, Failed)
    assert result.code == "no_user"


def test_a_change_of_permissions_is_skipped_and_its_scopes_are_kept():
    result = normalized(
        "permission_change",
        {"type": "permission_change", "scopes_added": "BODY", "user": USER | {"scopes": "A,BODY"}},
        user_id=None,
    )
    assert isinstance(result, Skipped)
    assert result.reason == "permission_change"
    (update,) = result.updates
    assert (update.table, update.key) == (CONNECTIONS, ("s-1",))
    assert update.values == {"scopes": "A,BODY"}
    without = normalized("permission_change", {"type": "permission_change", "user": {}})
    assert without == Skipped("permission_change")
    unfit = normalized("permission_change", {"user": USER | {"scopes": "a\x00"}})
    assert isinstance(unfit, Failed)
