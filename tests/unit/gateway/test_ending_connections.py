"""Connections that end: before a wipe, and because their user or an operator asked."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.users.connections import (
    Connected,
    Connections,
    Ended,
    end_connections,
    with_states,
)
from headwater.gateway.api.users.ports import UserPorts, UserServices
from headwater.gateway.api.users.user_operations import disconnect_all, disconnect_one
from headwater.gateway.api.wiping import Wiping
from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.answers import (
    ConnectionList,
    TerraFailed,
    parse_connection_list,
)
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.projections.deliveries.imports import Import
from headwater.projections.deliveries.quality import ConnectionActivity
from headwater.projections.deliveries.users import Connection
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import ReplySent, RetryRun, StartRun
from headwater.streams.workflows.client import Addressed
from tests.fakes.delivery_log import MemoryLog, MemoryWipes
from tests.unit.gateway.memory_app import memory_app, without_postgres
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply

LISTED_S = 1_782_900_000
OPENED = datetime.fromtimestamp(LISTED_S, UTC) - timedelta(days=1)
#: Longer than anything takes that does not wait.
AMPLE_S = 60.0


class MemoryTerra(Terra):
    """Terra with some connections of `user_a`; `fault` is raised by the list or every request."""

    def __init__(
        self, *listed: str, list_fault: Exception | None = None, fault: Exception | None = None
    ) -> None:
        self.listed = set(listed)
        self.ended: list[str] = []
        self._list_fault = list_fault or fault
        self._fault = fault

    def require(self) -> None:
        if isinstance(self._fault, TerraNotConfigured):
            raise self._fault

    async def close(self) -> None: ...

    async def deauthenticate(self, user_id: str) -> None:
        if self._fault is not None:
            raise self._fault
        self.listed.discard(user_id)
        self.ended.append(user_id)

    async def subscriptions(self) -> ConnectionList:
        if self._list_fault is not None:
            raise self._list_fault
        entries = [
            {"user_id": name, "provider": "GARMIN", "reference_id": "user_a", "active": True}
            for name in sorted(self.listed)
        ]
        raw = [msgspec.Raw(msgspec.json.encode(entry)) for entry in entries]
        return parse_connection_list(raw, LISTED_S)


class SlowTerra(MemoryTerra):
    """Never returns its list."""

    async def subscriptions(self) -> ConnectionList:
        return await asyncio.Event().wait()  # type: ignore[return-value]


def connection(name: str, **changes: Any) -> Connection:  # noqa: ANN401 (fields)
    fields: dict[str, Any] = {
        "terra_user_id": name,
        "provider": "GARMIN",
        "active": True,
        "reference_id": "user_a",
        "scopes": None,
        "connected_at": OPENED,
        "deactivated_at": None,
    }
    return Connection(**fields | changes)


CLOSED = {"active": False, "deactivated_at": OPENED + timedelta(hours=1)}


def known(*connections: Connection) -> Callable[[str], Awaitable[Sequence[Connection]]]:
    async def read(_: str) -> Sequence[Connection]:
        return connections

    return read


# -- before a wipe


def end(terra: Terra, *connections: Connection, within_s: float = AMPLE_S) -> Ended:
    return asyncio.run(end_connections(terra, known(*connections), "user_a", within_s))


def test_connections_that_are_known_or_listed_are_ended() -> None:
    ours = connection("here"), connection("before", **CLOSED)
    assert end(MemoryTerra("here", "there"), *ours) == Ended(("here", "there"), (), True)


@pytest.mark.parametrize(
    ("terra", "within_s"),
    [
        (MemoryTerra("here", "there", list_fault=TerraFailed("away")), AMPLE_S),
        (SlowTerra("here"), 0.2),
    ],
)
def test_a_list_that_cannot_be_read_is_told_and_known_connections_end_nevertheless(
    terra: MemoryTerra, within_s: float
) -> None:
    assert end(terra, connection("here"), within_s=within_s) == Ended(("here",), (), False)


def test_without_an_answer_of_terra_known_connections_are_still_connected() -> None:
    terra = MemoryTerra(fault=TerraFailed("away"))
    assert end(terra, connection("here")) == Ended((), ("here",), False)
    assert end(terra) == Ended((), (), False)


def test_without_credentials_there_is_no_list_to_read() -> None:
    terra = MemoryTerra(fault=TerraNotConfigured("no credentials"))
    assert end(terra, connection("here"), connection("too")) == Ended((), ("here", "too"), None)


def test_connections_that_cannot_be_read_are_not_taken_for_none() -> None:
    async def away(_: str) -> Sequence[Connection]:
        raise StoreUnavailable("away")

    async def slow(_: str) -> Sequence[Connection]:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    for read, within_s in ((away, AMPLE_S), (slow, 0.05)):
        terra = MemoryTerra("there")
        with pytest.raises(StoreUnavailable):
            asyncio.run(end_connections(terra, read, "user_a", within_s))
        assert terra.listed == {"there"}


def test_without_postgres_no_wipe_is_ordered(tmp_path: Path) -> None:
    wipes, blobs = MemoryWipes(), FolderBlobs(tmp_path)
    app = memory_app(
        users=UserServices(tokens=None, terra=MemoryTerra("there"), blobs=blobs),
        wiping=Wiping(log=wipes, blobs=blobs, new_id=lambda: "wipe", polls=0),
    )
    with TestClient(app) as client:
        answer = client.post("/admin/user/user_a/wipe", headers={"x-admin-key": "dev-admin-key"})
    assert_problem(answer, 503, "store_unavailable")
    assert wipes.ordered == []


# -- asked for


class Running:
    """Commands to an owner that knows the ids which it has started."""

    def __init__(self) -> None:
        self.memory = MemoryCommands()
        self.memory.answer = self._answer
        self.started: list[str] = []

    def _answer(self, asked: Addressed) -> ReplySent:
        if isinstance(asked.command, StartRun):
            if asked.instance_id in self.started:
                return reply(code=INSTANCE_EXISTS)
            self.started.append(asked.instance_id)
        return reply()


async def no_activity(_user_id: str) -> tuple[ConnectionActivity, ...]:
    return ()


async def no_imports(_user_id: str, _label: str) -> list[Import]:
    return []


def ports(commands: MemoryCommands, terra: Terra, *connections: Connection) -> UserPorts:
    return UserPorts(
        services=UserServices(tokens=None, terra=terra, blobs=FolderBlobs(Path("/none"))),
        log=MemoryLog(),  # type: ignore[arg-type]
        commands=commands,  # type: ignore[arg-type]
        instances=Workflows(without_postgres()),
        connections=known(*connections),
        activity=no_activity,
        imports=no_imports,
        clock=lambda: LISTED_S * 1000,
        new_id=lambda: "new",
    )


def ask(running: Running, *connections: Connection, terra: Terra | None = None) -> dict[str, Any]:
    """Ask for the end of the connection `one`."""
    has = terra or MemoryTerra(*(each.terra_user_id for each in connections if each.active))
    given = ports(running.memory, has, *connections)
    answer = asyncio.run(disconnect_one(given, "user_a", "one", "request"))
    body: dict[str, Any] = json.loads(msgspec.json.encode(answer))
    return body


def test_open_connections_have_a_state_and_closed_ones_have_none() -> None:
    running = Running()
    known_ports = ports(running.memory, MemoryTerra())
    shown = {"provider": "GARMIN", "scopes": None, "connected_at": None, "deactivated_at": None}
    connections = Connections(
        user_id="user_a",
        connections=tuple(
            Connected(terra_user_id=name, active=active, **shown)
            for name, active in (("silent", True), ("closed", False), ("new", True))
        ),
        reconciled=True,
    )

    async def activity(user_id: str) -> tuple[ConnectionActivity, ...]:
        at = datetime(2026, 7, 1, tzinfo=UTC)
        return tuple(
            ConnectionActivity(
                terra_user_id=name, user_id=user_id, provider="garmin", state="silent",
                connected_at=at, last_delivery_at=at, last_day=at.date(), silent_days=9,
                silent_after_days=3, failing_since=None, source="terra",
            )
            for name in ("silent", "closed")
        )  # fmt: skip

    known_ports = dataclasses.replace(known_ports, activity=activity)
    (silent, closed, new) = asyncio.run(with_states(known_ports, connections)).connections
    assert (silent.state, silent.last_day) == ("silent", date(2026, 7, 1))
    assert (closed.state, new.state) == (None, None)


def test_asking_again_joins_the_instance_that_was_started() -> None:
    running = Running()
    first, again = (ask(running, connection("one"), connection("other")) for _ in range(2))
    assert first == again
    assert running.started == [first["instance"]["id"]]
    # One that has failed is retried; the owner refuses that of any other.
    assert [type(sent.command) for sent in running.memory.sent] == [StartRun, StartRun, RetryRun]


def test_a_connection_that_was_opened_again_ends_again() -> None:
    running = Running()
    ask(running, connection("one"))
    ask(running, connection("one", connected_at=OPENED + timedelta(milliseconds=1)))
    ask(running, connection("one", connected_at=None))
    assert len(set(running.started)) == 3


@pytest.mark.parametrize(
    "terra", [MemoryTerra(), MemoryTerra(list_fault=TerraFailed("away"))], ids=["gone", "away"]
)
def test_of_a_closed_connection_nothing_is_started(terra: Terra) -> None:
    running = Running()
    answer = ask(running, connection("one", **CLOSED), terra=terra)
    assert answer == {"ok": True, "connections": 0, "instance": None}
    assert running.memory.sent == []


def test_a_closed_connection_that_terra_still_lists_is_ended() -> None:
    running = Running()
    answers = [
        ask(running, connection("one", **CLOSED), terra=MemoryTerra("one")) for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert (answers[0]["connections"], len(running.started)) == (1, 1)


def test_an_operator_who_asks_again_joins_as_well() -> None:
    running = Running()
    ours = connection("one"), connection("two")
    for order in (ours, ours[::-1]):
        given = ports(running.memory, MemoryTerra("one", "two"), *order)
        answer = asyncio.run(disconnect_all(given, "user_a", "request"))
        assert (answer.connections, len(running.started)) == (2, 1)
