"""What users ask: Terra's stand-in and Postgres are real, the log and the workflows in memory."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psycopg
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.users.lab_reports import FILE_BYTES_MAX
from headwater.gateway.api.users.ports import UserServices
from headwater.gateway.api.wiping import Wiping
from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.cli.user_tokens import verifier_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.answers import LocatedInstance, Page
from headwater.projections.workflows.queries import DeploymentRuns, RunKey
from headwater.schemas.answers import InstanceFound, InstanceStatus
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import ReplySent
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed
from tests.e2e.system import free_port
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.definitions import MemoryDefinitions
from tests.fakes.delivery_log import MemoryLog, MemoryReplays, MemoryWipes
from tests.terra import StandIn, Taken
from tests.unit.gateway.issuer import AUDIENCE, ISSUER, NOW_S, USER, key_set, token
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands, instance, reply

Connect = Callable[..., None]

BEARER = {"authorization": f"Bearer {token()}"}
PDF = ("report.pdf", b"%PDF-1.7 a report", "application/pdf")
SUBMITTED = {
    "at_ms": NOW_S * 1000,
    "terra_status": "submitted",
    "terra_upload_id": "t-1",
    "terra_response": "{}",
}


class Entry(NamedTuple):
    """What is read of an entry of a history."""

    name: str
    result: str


class Instances:
    """The first step of every instance has ended with what is put here."""

    def __init__(self) -> None:
        self.output: dict[str, Any] = SUBMITTED
        self.imports: tuple[InstanceFound, ...] = ()
        self.labels: Mapping[str, str] = {}

    async def next_offsets(self) -> dict[int, int]:
        return {}

    async def instance(self, workflow_name: str, instance_id: str) -> LocatedInstance | None:
        del workflow_name, instance_id
        return instance(status="waiting")

    async def steps(self, run: RunKey, *, limit: int) -> Page[Entry]:
        assert (run.workflow_name, limit) == ("terra-lab", 1)
        return Page(rows=(Entry("submit", json.dumps(self.output)),), cursor=None)

    async def instances(
        self, workflow_name: str, *, limit: int, labels: Mapping[str, str]
    ) -> Page[InstanceFound]:
        assert (workflow_name, limit) == ("terra-import", 1)
        self.labels = labels
        return Page(rows=self.imports, cursor=None)

    async def runs_of_deployments(
        self, deployments: Mapping[str, Iterable[str]]
    ) -> dict[str, DeploymentRuns]:
        return dict.fromkeys(deployments, DeploymentRuns(0, None))

    async def statuses(
        self, instances: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], InstanceStatus]:
        ended = InstanceStatus(status=RunStatus.COMPLETE, output=self.output)
        return dict.fromkeys(instances, ended)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("stand-in"), Taken().url) as running:
        yield running


def _no_answer(asked: Addressed) -> ReplySent:
    raise BrokerUnavailable(f"expected Kafka to take a command for {asked.workflow}, found none")


#: Terra's list is as old as it gets at once: what a test changes there is seen.
HURRY = 1_000_000.0


class System:
    """A gateway and what is behind it; without Kafka if that is `away`."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        terra: Terra,
        *,
        away: bool = False,
        lab_uploads: int = 1_000,
        lab_upload_mib: int = 10_000,
    ) -> None:
        self.log = MemoryLog(away=away)
        self.commands = MemoryCommands()
        if away:
            self.commands.answer = _no_answer
        self.instances = Instances()
        self.audit = MemoryAudit()
        self.blobs = folder / "blobs"
        jwks = folder / "jwks.json"
        jwks.write_bytes(key_set())
        self.settings = Settings(
            jwks=str(jwks),
            jwt_issuer=ISSUER,
            jwt_audience=AUDIENCE,
            lab_uploads=lab_uploads,
            lab_upload_mib=lab_upload_mib,
        )
        blobs = FolderBlobs(self.blobs)
        self.app = memory_app(
            self.settings,
            log=self.log,
            audit=self.audit,
            reader=Reader(dsn),
            replays=MemoryReplays(away=away),
            clock=lambda: NOW_S * 1000,
            workflows=memory_workflows(
                commands=self.commands,
                definitions=MemoryDefinitions(away=away),
                workflows=self.instances,
            ),
            users=UserServices(
                tokens=verifier_of(self.settings, clock=lambda: NOW_S * 1000, steady_s=lambda: 0.0),
                terra=terra,
                blobs=blobs,
            ),
            wiping=Wiping(log=MemoryWipes(away=away), blobs=blobs, new_id=lambda: "wipe", polls=0),
        )

    def forget(self) -> None:
        self.log.deliveries.clear()
        self.log.away = False
        self.commands.sent.clear()
        self.commands.answer = lambda _: reply()
        self.instances.output = SUBMITTED
        self.instances.imports = ()
        shutil.rmtree(self.blobs, ignore_errors=True)

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(delivery.body) for delivery in self.log.deliveries]


@pytest.fixture(scope="module")
def dsn(module_migrated: str) -> str:
    return module_migrated


@pytest.fixture(scope="module")
def running(
    dsn: str, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[System, TestClient[Any]]]:
    system = System(dsn, tmp_path_factory.mktemp("system"), stand_in.client(HURRY))
    with TestClient(system.app, raise_server_exceptions=False) as client:
        client.headers.update(BEARER)
        yield system, client


@pytest.fixture
def system(running: tuple[System, TestClient[Any]]) -> System:
    """The gateway of all tests, as if it were new."""
    running[0].forget()
    return running[0]


@pytest.fixture
def client(running: tuple[System, TestClient[Any]], system: System) -> TestClient[Any]:
    del system
    return running[1]


@pytest.fixture
def nobody_asked(stand_in: StandIn) -> Iterator[None]:
    """Terra does not answer any more."""
    stand_in.fail("status", status=500, path="/v2", times=1_000)
    yield
    stand_in.work()


@pytest.fixture
def connections(dsn: str) -> Iterator[Connect]:
    """Makes rows of connections; they go with the test."""
    with psycopg.connect(dsn, autocommit=True) as database:

        def make(*subjects: str, active: bool = True) -> None:
            for subject in subjects:
                database.execute(
                    "insert into terra_connections (terra_user_id, user_id, provider, active,"
                    " column_sources, updated_at) values (%s, %s, 'GARMIN', %s, '{}', now())",
                    (subject, USER, active),
                )

        yield make
        database.execute("delete from terra_connections")


ROUTES = [
    ("DELETE", "/v1/connections/t-1"),
    ("POST", "/v1/connect"),
    ("GET", "/v1/me"),
    ("POST", "/v1/import"),
    ("POST", "/v1/labs/upload"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_of_users_takes_their_tokens_alone(
    client: TestClient[Any], method: str, path: str
) -> None:
    for provided in ("", "Bearer dev-read-key", f"Bearer {token(exp=1)}"):
        answer = client.request(method, path, headers={"authorization": provided})
        assert_problem(answer, 401, "unauthorized")
    assert_problem(client.request(method, f"{path}?user_id=a"), 400, "unknown_parameter")


def test_a_session_to_connect_is_begun_at_terra_for_the_user(client: TestClient[Any]) -> None:
    expected = {"providers": ["GARMIN"], "success_url": "amy://done"}
    answer = client.post("/v1/connect", json=expected)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"url", "session_id", "expires_in"}
    assert '"expires_in":900}' in answer.text
    assert client.post("/v1/connect").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"providers": "GARMIN"}, "providers"),
        ({"providers": ["a b"]}, "providers"),
        ({"providers": [None]}, "providers"),
        ({"providers": ["A"] * 101}, "providers"),
        ({"success_url": 7}, "success_url"),
        ({"success_url": "nowhere"}, "success_url"),
        ({"success_url": "https://a/\0"}, "success_url"),
        ({"failure_url": "javascript://a%0Aalert(1)"}, "failure_url"),
        ({"failure_url": "https://a/" + "x" * 2050}, "failure_url"),
        ({"provider": []}, "provider"),
    ],
)
def test_a_field_that_is_wrong_is_named(client: TestClient[Any], body: Any, field: str) -> None:  # noqa: ANN401
    result = assert_problem(client.post("/v1/connect", json=body), 400, "invalid_body")
    assert result["field"].startswith(field)


@pytest.mark.usefixtures("nobody_asked")
def test_without_terra_nobody_is_led_anywhere(client: TestClient[Any]) -> None:
    assert_problem(client.post("/v1/connect", json={}), 502, "terra_failed")


def test_connections_are_brought_to_agree_with_those_of_terra(
    system: System,
    client: TestClient[Any],
    stand_in: StandIn,
    connections: Connect,
) -> None:
    stand_in.add("both", "theirs", reference=USER)
    stand_in.add("strange", reference="user_bo")
    connections("both", "ours")
    connections("closed", active=False)
    result = client.get("/v1/me").json()
    assert (result["user_id"], result["reconciled"]) == (USER, True)
    active = {
        connection["terra_user_id"]: connection["active"] for connection in result["connections"]
    }
    assert active == {"both": True, "closed": False, "ours": False, "theirs": True}
    theirs = result["connections"][3]
    assert (theirs["provider"], theirs["scopes"]) == ("GARMIN", "DAILY")
    assert theirs["connected_at"] == result["connections"][2]["deactivated_at"]
    assert theirs["connected_at"][:19] <= result["reconciled_at"][:19]
    reported = {(fact["type"], fact["terra_user_id"]) for fact in system.facts()}
    assert reported == {("connection_listed", "theirs"), ("connection_gone", "ours")}


@pytest.mark.usefixtures("nobody_asked")
def test_without_terra_connections_are_those_that_we_have(
    system: System,
    client: TestClient[Any],
    connections: Connect,
) -> None:
    connections("ours")
    result = client.get("/v1/me").json()
    assert result["reconciled"] is False
    assert [connection["terra_user_id"] for connection in result["connections"]] == ["ours"]
    assert system.facts() == []


def test_what_cannot_be_told_is_not_shown_as_if_it_were(
    system: System, client: TestClient[Any], stand_in: StandIn
) -> None:
    stand_in.add("untold", reference=USER)
    system.log.away = True
    assert client.get("/v1/me").json()["reconciled"] is False


@pytest.mark.usefixtures("nobody_asked")
def test_an_import_is_a_workflow_over_the_active_connections(
    system: System,
    client: TestClient[Any],
    connections: Connect,
) -> None:
    connections("one", "two")
    connections("closed", active=False)
    answer = client.post("/v1/import", json={"days": 5000})
    assert answer.status_code == 202, answer.text
    result = answer.json()
    (sent,) = system.commands.sent
    assert result.pop("instance") == {"workflow": "terra-import", "id": sent.instance_id}
    assert result == {"ok": True, "days": 1460, "connections": 2, "requests": 8}
    assert json.loads(sent.command.params) == {  # type: ignore[union-attr]
        "user_id": USER,
        "days": 1460,
        "until": "2026-07-01",
        "connections": ["one", "two"],
    }


def earlier(system: System, name: str, status: RunStatus) -> None:
    """Has the user's latest import stand so."""
    at = datetime(2026, 7, 1, tzinfo=UTC)
    details = InstanceStatus(status=status)
    row = InstanceFound(
        id=name, details=details, workflow_name="terra-import", created_at=at, updated_at=at
    )
    system.instances.imports = (row,)


def test_a_user_uploads_so_much_in_an_hour(dsn: str, stand_in: StandIn, tmp_path: Path) -> None:
    system = System(dsn, tmp_path, stand_in.client(HURRY), lab_uploads=2, lab_upload_mib=10)
    with TestClient(system.app) as client:

        def upload(user: str, content: bytes = b"%PDF-1.7") -> httpx2.Response:
            headers = {"authorization": f"Bearer {token(sub=user)}"}
            files = {"file": ("a.pdf", content, "application/pdf")}
            return client.post("/v1/labs/upload", files=files, headers=headers)

        assert [upload("user_a").status_code for _ in range(2)] == [200, 200]
        refused = upload("user_a")
        assert_problem(refused, 429, "too_many_requests")
        assert int(refused.headers["retry-after"]) == 1800
        assert upload("user_b", bytes(FILE_BYTES_MAX)).status_code == 200
        assert_problem(upload("user_b"), 429, "too_many_requests")
        assert upload("user_c").status_code == 200


def test_a_whole_number_may_be_written_with_a_fraction(
    system: System, client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    stand_in.add("one", reference=USER)
    connections("one")
    answer = client.post("/v1/import", content=b'{"days": 30.0}')
    assert (answer.status_code, answer.json()["days"]) == (202, 30), answer.text
    assert '"days":30,' in system.commands.sent[-1].command.params  # type: ignore[union-attr]


def test_one_import_of_a_user_runs_at_a_time(
    system: System, client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    stand_in.add("one", reference=USER)
    connections("one")
    first = client.post("/v1/import", json={"days": 7}).json()["instance"]["id"]
    (sent,) = system.commands.sent
    assert {label.name: label.value for label in sent.command.labels} == system.instances.labels  # type: ignore[union-attr]
    earlier(system, first, RunStatus.WAITING)
    refused = assert_problem(client.post("/v1/import", json={"days": 7}), 409, "import_under_way")
    assert refused["running"] == {"workflow": "terra-import", "id": first}
    assert len(system.commands.sent) == 1
    earlier(system, first, RunStatus.ERRORED)
    second = client.post("/v1/import", json={"days": 7}).json()["instance"]["id"]
    assert (second, system.commands.sent[-1].instance_id) == (f"{first[:-1]}2", second)


def test_of_two_imports_at_once_one_is_refused(
    system: System, client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    """Postgres does not know of the other yet, and the owner of the instance does."""
    stand_in.add("one", reference=USER)
    connections("one")
    system.commands.answer = lambda _: reply(code="INSTANCE_ID_ALREADY_EXISTS")
    assert_problem(client.post("/v1/import", json={"days": 7}), 409, "import_under_way")


ADMIN = {"x-admin-key": "dev-admin-key"}


def test_a_user_ends_a_connection(
    system: System, client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    """Also one that only Terra has; one that is closed has ended, another user's is not there."""
    stand_in.add("only-there", reference=USER)
    stand_in.add("of-another", reference="user_other")
    connections("mine")
    connections("closed", active=False)
    for name in ("mine", "only-there"):
        answer = client.delete(f"/v1/connections/{name}")
        assert answer.status_code == 202, answer.text
        sent = system.commands.sent[-1]
        instance = {"workflow": "terra-disconnect", "id": sent.instance_id}
        assert answer.json() == {"ok": True, "connections": 1, "instance": instance}
        assert json.loads(sent.command.params) == {"user_id": USER, "connections": [name]}  # type: ignore[union-attr]
    answer = client.delete("/v1/connections/closed")
    assert answer.status_code == 202, answer.text
    assert answer.json() == {"ok": True, "connections": 0, "instance": None}
    for name in ("of-another", "none", "a%0Ab"):
        assert client.delete(f"/v1/connections/{name}").status_code in {400, 404}
    assert len(system.commands.sent) == 2


def test_an_operator_acts_for_a_user(
    system: System, client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    stand_in.add("one", "two", reference=USER)
    connections("one", "two")
    answer = client.post(f"/admin/user/{USER}/import", json={"days": 7}, headers=ADMIN)
    assert answer.status_code == 202, answer.text
    assert (answer.json()["days"], answer.json()["instance"]["workflow"]) == (7, "terra-import")
    assert answer.json()["connections"] >= 2
    answer = client.post(f"/admin/user/{USER}/reconcile", headers=ADMIN)
    assert (answer.status_code, set(answer.json())) == (202, {"ok", "instance"}), answer.text
    assert json.loads(system.commands.sent[-1].command.params) == {"user_id": USER}  # type: ignore[union-attr]
    answer = client.post(f"/admin/user/{USER}/disconnect", headers=ADMIN)
    assert answer.status_code == 202, answer.text
    params = json.loads(system.commands.sent[-1].command.params)  # type: ignore[union-attr]
    assert {"one", "two"} <= set(params["connections"])
    actions = [entry.action for entry in system.audit.entries[-3:]]
    assert actions == ["users.import", "users.reconcile", "users.disconnect"]


def test_an_operators_import_has_the_limits_of_the_users(
    system: System, client: TestClient[Any], connections: Connect
) -> None:
    for body in ({}, {"days": 0}, {"days": "7"}):
        refused = client.post(f"/admin/user/{USER}/import", json=body, headers=ADMIN)
        assert_problem(refused, 400, "invalid_days")
    for path in ("import", "disconnect"):
        none = client.post(f"/admin/user/user_none/{path}", json={"days": 7}, headers=ADMIN)
        assert_problem(none, 409, "no_connections")
    connections("one")
    earlier(system, "x-1", RunStatus.WAITING)
    refused = client.post(f"/admin/user/{USER}/import", json={"days": 7}, headers=ADMIN)
    assert assert_problem(refused, 409, "import_under_way")["running"]["id"] == "x-1"


def test_a_wipe_ends_the_connections_at_terra_first(
    client: TestClient[Any], connections: Connect, stand_in: StandIn
) -> None:
    stand_in.add("here", "there", reference=USER)
    connections("here")
    answer = client.post(f"/admin/user/{USER}/wipe", headers=ADMIN)
    assert answer.is_success, answer.text
    assert answer.json()["disconnected"] >= 2
    assert answer.json()["still_connected"] == []
    assert answer.json()["terra_list_read"] is True
    assert not stand_in.has(USER)


def test_a_wipe_is_not_held_up_by_a_terra_that_is_away(
    dsn: str, stand_in: StandIn, tmp_path: Path, connections: Connect
) -> None:
    connections("here")
    terra = stand_in.client(api=f"http://127.0.0.1:{free_port()}/v2")
    with TestClient(System(dsn, tmp_path, terra).app) as client:
        answer = client.post(f"/admin/user/{USER}/wipe", headers=ADMIN)
    assert answer.is_success, answer.text
    assert (answer.json()["disconnected"], answer.json()["still_connected"]) == (0, ["here"])
    assert answer.json()["terra_list_read"] is False


@pytest.mark.parametrize(
    "body",
    [b"", b"{}"] + [json.dumps({"days": item}).encode() for item in (0, -1, "7", 1.5, True, [])],
)
def test_days_that_are_none_are_refused(
    system: System, client: TestClient[Any], body: bytes
) -> None:
    result = assert_problem(client.post("/v1/import", content=body), 400, "invalid_days")
    assert result["field"] == "days"
    assert not system.commands.sent


@pytest.mark.parametrize("body", [b"[]", b"{", b"7", b'{"days": 1, "more": 1}', b"\xff"])
def test_a_body_that_is_none_is_refused(client: TestClient[Any], body: bytes) -> None:
    assert_problem(client.post("/v1/import", content=body), 400, "invalid_body")


def test_without_connections_there_is_nothing_to_import(
    dsn: str, stand_in: StandIn, tmp_path: Path
) -> None:
    with TestClient(System(dsn, tmp_path, stand_in.client()).app) as client:
        headers = {"authorization": f"Bearer {token(sub='user_new')}"}
        answer = client.post("/v1/import", json={"days": 7}, headers=headers)
    assert_problem(answer, 409, "no_connections")


def test_without_an_account_at_terra_its_routes_say_so(
    dsn: str, stand_in: StandIn, tmp_path: Path
) -> None:
    system = System(dsn, tmp_path, stand_in.client(dev_id=""))
    with TestClient(system.app) as client:
        client.headers.update(BEARER)
        for path in ("/v1/connect", "/v1/import"):
            answer = client.post(path, json={"days": 7} if path == "/v1/import" else {})
            assert_problem(answer, 503, "terra_not_configured")
        assert_problem(client.delete("/v1/connections/a"), 503, "terra_not_configured")
        upload = client.post("/v1/labs/upload", files={"file": PDF})
        assert_problem(upload, 503, "terra_not_configured")
        assert client.get("/v1/me").json()["reconciled"] is False
    assert not system.blobs.exists()


@pytest.mark.parametrize(
    ("name", "kind", "extension"),
    [
        ("report.pdf", "application/pdf", "pdf"),
        ("scan", "image/png", "png"),
        ("scan.JPEG", "application/octet-stream", "jpg"),
        ("../../etc/passwd\n.pdf", "text/plain", "pdf"),
        ("C:\\reports\\näme.png", "", "png"),
    ],
)
def test_a_report_is_kept_before_terra_has_it(
    system: System, client: TestClient[Any], name: str, kind: str, extension: str
) -> None:
    answer = client.post("/v1/labs/upload", files={"file": (name, PDF[1], kind)})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    key = f"lab-uploads/{USER}/{result['upload_id']}.{extension}"
    assert (result["ok"], result["storage_key"]) == (True, key)
    assert (result["terra_status"], bool(result["note"])) == ("submitted", True)
    assert (system.blobs / key).read_bytes() == PDF[1]
    (fact,) = system.facts()
    assert (fact["type"], fact["storage_key"]) == ("lab_uploaded", key)
    assert (fact["user_id"], fact["size"]) == (USER, len(PDF[1]))


def test_a_report_that_terra_refuses_is_kept(system: System, client: TestClient[Any]) -> None:
    system.instances.output = SUBMITTED | {"terra_status": "failed:400", "terra_upload_id": None}
    answer = client.post("/v1/labs/upload", files={"file": PDF})
    result = assert_problem(answer, 502, "terra_upload_failed")
    assert result["terra_status"] == "failed:400"
    assert (system.blobs / result["storage_key"]).exists()
    assert len(system.facts()) == 1


def test_a_report_that_nobody_can_submit_yet_is_pending(
    system: System, client: TestClient[Any]
) -> None:
    system.instances.output = {"strange": 1}
    answer = client.post("/v1/labs/upload", files={"file": PDF})
    assert (answer.status_code, answer.json()["terra_status"]) == (200, "pending")


@pytest.mark.usefixtures("nobody_asked")
def test_a_worker_without_the_workflow_is_named(
    system: System, client: TestClient[Any], connections: Connect
) -> None:
    connections("one")
    system.commands.answer = lambda _: reply(code="WORKFLOW_NOT_FOUND", message="none")
    answer = client.post("/v1/import", json={"days": 7})
    assert_problem(answer, 503, "worker_unavailable")


def test_a_repeated_upload_with_its_key_is_the_first_one(
    system: System, client: TestClient[Any]
) -> None:
    def upload(key: str | None, content: bytes = PDF[1]) -> str:
        headers = {} if key is None else {"idempotency-key": key}
        files = {"file": (PDF[0], content, PDF[2])}
        answer = client.post("/v1/labs/upload", files=files, headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["upload_id"])

    first = upload("a")
    assert upload("a") == first
    others = [upload("b"), upload("a", b"%PDF another"), upload(None), upload(None)]
    assert len({first, *others}) == 5
    assert len(list(system.blobs.rglob("*.pdf"))) == 5


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_that_is_none_is_refused(system: System, client: TestClient[Any], key: str) -> None:
    headers = {"idempotency-key": key}
    answer = client.post("/v1/labs/upload", files={"file": PDF}, headers=headers)
    assert_problem(answer, 400, "invalid_parameter")
    assert system.facts() == []


def test_without_kafka_a_report_is_not_taken(system: System, client: TestClient[Any]) -> None:
    system.log.away = True
    answer = client.post("/v1/labs/upload", files={"file": PDF})
    assert_problem(answer, 503, "broker_unavailable")


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


def part(content: bytes, name: str = "file", more: str = '; filename="a.pdf"') -> bytes:
    head = f'content-disposition: form-data; name="{name}"{more}\r\n'
    return head.encode() + b"content-type: application/pdf\r\n\r\n" + content


#: What a browser sends of a field for a file where nobody chose one.
NOT_CHOSEN = (
    b'content-disposition: form-data; name="file"; filename=""\r\n'
    b"content-type: application/octet-stream\r\n\r\n"
)


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{}", "application/json", 400, "expected_multipart"),
        (form(part(b"x")), "multipart/form-data", 400, "expected_multipart"),
        (b"", "multipart/form-data; boundary=b", 400, "expected_multipart"),
        (b"nothing of a form", "multipart/form-data; boundary=b", 400, "expected_multipart"),
        (form(part(b"x"), end=b""), "", 400, "expected_multipart"),
        (form(part(b"x"), part(b"y")), "", 400, "expected_multipart"),
        (form(part(b"x", "flie")), "", 400, "missing_file_field"),
        (form(part(b"x", more="")), "", 400, "missing_file_field"),
        (form(part(b"")), "", 400, "missing_file_field"),
        (form(NOT_CHOSEN), "", 400, "missing_file_field"),
        (form(NOT_CHOSEN + b"x"), "", 415, "unsupported_file_type"),
        (form(), "", 400, "missing_file_field"),
        (form(part(b"x", more='; filename="' + "x" * 600 + '.pdf"')), "", 400, "invalid_body"),
        (form(part(b"x", more='; filename="a\0.pdf"')), "", 400, None),
        (form(b"x" * 9000 + b": y\r\n\r\nz"), "", 400, "expected_multipart"),
        (form(part(b"x" * (FILE_BYTES_MAX + 1))), "", 413, "file_too_large"),
        (b"x" * (FILE_BYTES_MAX + 100_000), "", 413, "file_too_large"),
    ],
)
def test_a_form_that_is_wrong_leaves_nothing_behind(
    system: System,
    client: TestClient[Any],
    body: bytes,
    kind: str,
    status: int,
    code: str | None,
) -> None:
    headers = {"content-type": kind or "multipart/form-data; boundary=b"}
    answer = client.post("/v1/labs/upload", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert code in (None, answer.json()["code"])
    assert answer.json()["request_id"]
    assert not system.blobs.exists()
    assert system.facts() == []
    assert not system.commands.sent


def test_a_file_of_the_largest_size_is_taken(system: System, client: TestClient[Any]) -> None:
    content = b"\0" * FILE_BYTES_MAX
    answer = client.post("/v1/labs/upload", files={"file": ("a.pdf", content, "application/pdf")})
    assert answer.status_code == 200, answer.text
    assert system.facts()[0]["size"] == FILE_BYTES_MAX


def test_a_file_that_is_something_else_is_refused(system: System, client: TestClient[Any]) -> None:
    answer = client.post("/v1/labs/upload", files={"file": ("a.txt", b"x", "text/plain")})
    assert_problem(answer, 415, "unsupported_file_type")
    assert not system.blobs.exists()
