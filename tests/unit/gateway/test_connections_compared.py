"""A user's connections beside Terra's list, as of when that was read."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headwater.gateway.builtin.terra.answers import ConnectionList, parse_connection_list
from headwater.gateway.builtin.terra.connections import compare
from headwater.projections.deliveries.users import Connection
from headwater.schemas.providers.headwater import ConnectionClosed, ConnectionListed

SECOND = 1_782_900_000
LISTED_S = SECOND + 0.7
#: Deliveries are signed by the second, so one of the list's own second may be later than the list.
LISTED_AT = datetime.fromtimestamp(SECOND - 0.001, UTC)
EARLIER, SAME, LATER = (datetime.fromtimestamp(SECOND + by, UTC) for by in (-60, 0, 30))


def listing(*entries: dict[str, Any]) -> ConnectionList:
    return parse_connection_list(
        [msgspec.Raw(msgspec.json.encode(item)) for item in entries], LISTED_S
    )


def ours(**changes: Any) -> Connection:  # noqa: ANN401 (fields)
    fields: dict[str, Any] = {
        "terra_user_id": "t-1",
        "provider": "GARMIN",
        "active": True,
        "reference_id": "user_a",
        "scopes": None,
        "connected_at": EARLIER,
        "deactivated_at": None,
    }
    return Connection(**fields | changes)


def entry(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 (fields)
    return {"user_id": "t-1", "provider": "GARMIN", "reference_id": "user_a"} | changes


def facts(known: Connection | None, *entries: dict[str, Any]) -> list[type]:
    result = compare("user_a", [known] if known else [], listing(*entries))
    assert all(fact.at_ms == SECOND * 1000 - 1 for fact in result.facts)
    return [type(fact) for fact in result.facts]


CLOSED = {"active": False, "deactivated_at": EARLIER}


@pytest.mark.parametrize(
    ("known", "entries", "expected"),
    [
        (ours(), [entry()], []),
        (None, [entry()], [ConnectionListed]),
        (ours(**CLOSED), [entry()], [ConnectionListed]),
        (ours(), [], [ConnectionClosed]),
        (ours(), [entry(active=False)], [ConnectionClosed]),
        # Of another reference, as after a new authentication, and of none.
        (ours(), [entry(reference_id="widget-123")], []),
        (ours(), [entry(reference_id=None)], []),
        # Learned after the list was read.
        (ours(connected_at=LATER), [], []),
        (ours(connected_at=SAME), [], []),
        (ours(active=False, deactivated_at=LATER), [entry()], []),
        (ours(active=False, deactivated_at=SAME), [entry()], []),
        # Of an entry that cannot be read, and of one that might be any.
        (ours(), [entry(provider=None)], []),
        (ours(), [{"provider": "GARMIN"}], []),
        (None, [entry(reference_id="user_b")], []),
    ],
)
def test_what_differs(
    known: Connection | None, entries: list[dict[str, Any]], expected: list[type]
) -> None:
    assert facts(known, *entries) == expected


@pytest.mark.parametrize(
    ("known", "since"),
    [(ours(), EARLIER), (ours(**CLOSED), LISTED_AT), (None, LISTED_AT)],
)
def test_a_connection_is_connected_since_headwater_was_last_told_that_it_is_open(
    known: Connection | None, since: datetime
) -> None:
    listed = entry(created_at="2026-01-01T00:00:00+00:00")
    (connection,) = compare("user_a", [known] if known else [], listing(listed)).connections
    assert connection.active
    assert connection.connected_at == since
