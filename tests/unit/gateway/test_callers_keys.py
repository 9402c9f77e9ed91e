"""Idempotency keys of several callers behind hooks: none sees, takes or meets those of another."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.workflows import Principal, RequestContext, WorkflowHooks
from headwater.gateway.api.workflows.runs.run_service import RunPorts
from headwater.processors.api_keys import digest_of, id_of, renewed_text
from headwater.processors.idempotency_keys import IdempotencyKey, RequestState, StoredRequest
from headwater.projections.workflows.runs import Runs
from headwater.schemas.api_keys import ApiKeyRotated
from headwater.schemas.codec import encode
from headwater.schemas.history import SendEvent, StartRun
from headwater.streams.workflows.client import Addressed
from tests.fakes.api_keys import MemoryApiKeys
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.deployments import with_active_deployment
from tests.unit.gateway.memory_app import memory_app, memory_workflows, without_postgres
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_key_matrix import created, key
from tests.unit.gateway.workflow_fakes import MemoryCommands, reply

Client = TestClient[Any]

ORDERS = "/api/workflows/workflows/order/instances"
RUN = {"workflowName": "order", "input": 1}
AMARA, BO = {"authorization": "Bearer of-amara"}, {"authorization": "Bearer of-bo"}
ONE = {"idempotency-key": "1", "prefer": "respond-async"}


class MemoryKeys:
    """Keys as Postgres holds them, for a day that does not end."""

    def __init__(self) -> None:
        self.rows: dict[IdempotencyKey, StoredRequest] = {}

    async def reserve(self, key: IdempotencyKey, reservation: StoredRequest) -> StoredRequest:
        result = self.rows.get(key)
        if result is not None and result.state is RequestState.REFUSED:
            taken_over = result.request_hash != reservation.request_hash
            result = None if taken_over else result
        return self.rows.setdefault(key, reservation) if result else self._put(key, reservation)

    def _put(self, key: IdempotencyKey, row: StoredRequest) -> StoredRequest:
        self.rows[key] = row
        return row

    async def complete(
        self, key: IdempotencyKey, run_id: str, status: int, body: str
    ) -> StoredRequest | None:
        row = self.rows[key]
        if row.response_run_id != run_id:
            return None
        if row.state is not RequestState.COMPLETED:
            done = {"state": RequestState.COMPLETED, "status_code": status, "body": body}
            row = self._put(key, msgspec.structs.replace(row, **done))
        return row

    async def refuse(self, key: IdempotencyKey, run_id: str) -> None:
        row = self.rows[key]
        if row.response_run_id == run_id and row.state is RequestState.IN_PROGRESS:
            self._put(key, msgspec.structs.replace(row, state=RequestState.REFUSED))


class Seen(NamedTuple):
    """What comes of requests; one application serves all tests."""

    commands: MemoryCommands
    audit: MemoryAudit
    keys: MemoryKeys
    #: The principals that hooks of policies were told of.
    principals: list[str | None]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Client, Seen]]:
    seen = Seen(MemoryCommands(), MemoryAudit(), MemoryKeys(), [])

    async def known(context: RequestContext) -> Principal | None:
        tenant = context.headers.get("x-tenant")
        return Principal(tenant) if tenant else None

    def own(context: RequestContext) -> None:
        seen.principals.append(context.principal)

    hooks = WorkflowHooks(authorize_request=known, authorize_instance_creation=own)
    runs = RunPorts(
        rows=Runs(without_postgres()),
        keys=seen.keys,
        deployments=with_active_deployment("order"),
        project_id="default",
    )
    workflows = memory_workflows(hooks=hooks, commands=seen.commands, run_ports=runs)
    with TestClient(memory_app(workflows=workflows, audit=seen.audit)) as client:
        yield client, seen


@pytest.fixture
def client(served: tuple[Client, Seen]) -> Client:
    client, seen = served
    seen.audit.clear()
    seen.keys.rows.clear()
    seen.principals.clear()
    seen.commands.answer = lambda _: reply()
    return client


@pytest.fixture
def commands(served: tuple[Client, Seen]) -> MemoryCommands:
    return served[1].commands


def sent(
    client: Client, commands: MemoryCommands, who: dict[str, str], path: str, body: object
) -> Addressed:
    commands.sent.clear()
    answer = client.post(path, json=body, headers=who | ONE)
    assert answer.is_success, answer.text
    (command,) = commands.sent
    return command


def test_callers_with_one_key_create_instances_of_their_own(
    client: Client, commands: MemoryCommands
):
    amaras, bos = (sent(client, commands, who, ORDERS, {}) for who in (AMARA, BO))
    assert amaras.instance_id != bos.instance_id
    assert sent(client, commands, AMARA, ORDERS, {}) == amaras


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ORDERS, {"id": "shared"}),
        (f"{ORDERS}/batch", {"instances": [{"id": "shared"}]}),
        (f"{ORDERS}/shared/events", {"type": "paid"}),
    ],
)
def test_within_one_instance_the_key_of_one_caller_is_not_that_of_another(
    client: Client, commands: MemoryCommands, path: str, body: object
):
    keys = []
    for who in (AMARA, BO, AMARA):
        command = sent(client, commands, who, path, body).command
        assert isinstance(command, StartRun | SendEvent)
        assert command.once is not None
        keys.append(command.once.key)
    assert keys[0] == keys[2] != keys[1]


def test_runs_of_callers_with_one_key_are_their_own(client: Client, commands: MemoryCommands):
    def create(who: dict[str, str], body: object) -> httpx2.Response:
        return client.post("/v1/runs", json=body, headers=who | ONE)

    amaras, bos = create(AMARA, RUN), create(BO, RUN | {"input": 2})
    assert amaras.json()["runId"] != bos.json()["runId"]
    assert {amaras.headers.get("idempotent-replayed"), bos.headers.get("idempotent-replayed")} == {
        None
    }
    again = create(AMARA, RUN)
    assert (again.json(), again.headers["idempotent-replayed"]) == (amaras.json(), "true")
    assert_problem(create(BO, RUN), 409, "idempotency_conflict")


def test_a_principal_keeps_its_keys_when_its_token_changes(
    client: Client, commands: MemoryCommands, served: tuple[Client, Seen]
):
    tenant = {"x-tenant": "acme"}
    first = sent(client, commands, AMARA | tenant, ORDERS, {})
    assert sent(client, commands, BO | tenant, ORDERS, {}) == first
    other = sent(client, commands, AMARA | {"x-tenant": "bolt"}, ORDERS, {})
    assert other.instance_id != first.instance_id
    assert served[1].principals == ["acme", "acme", "bolt"]


def test_a_principal_is_named_in_the_audit_log_by_its_digest(
    client: Client, served: tuple[Client, Seen]
):
    client.post(ORDERS, json={}, headers=AMARA | ONE | {"x-tenant": "acme"})
    (entry,) = served[1].audit.entries
    assert entry.key_id == f"hook:{sha256(b'acme').hexdigest()[:8]}"
    assert '"idempotencyKey":"1"' in entry.metadata


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ORDERS, {"id": "{id}"}),
        (f"{ORDERS}/batch", {"instances": [{"id": "{id}"}]}),
        (f"{ORDERS}/{{id}}/events", {"type": "paid", "startIfMissing": {}}),
    ],
)
def test_no_caller_takes_the_id_that_is_made_of_the_key_of_another(
    client: Client, commands: MemoryCommands, path: str, body: object
):
    taken = sent(client, commands, AMARA, ORDERS, {}).instance_id
    commands.sent.clear()
    body = msgspec.json.decode(msgspec.json.encode(body).replace(b"{id}", taken.encode()))
    answer = client.post(path.replace("{id}", taken), json=body, headers=BO)
    assert_problem(answer, 400, "INVALID_INSTANCE_ID")
    assert not commands.sent


def test_a_refused_request_frees_its_key_for_a_corrected_one(
    client: Client, commands: MemoryCommands
):
    def create(body: object) -> httpx2.Response:
        return client.post("/v1/runs", json=body, headers=AMARA | ONE)

    commands.answer = lambda _: reply(code="INVALID_PARAMS", message="expected a number")
    assert_problem(create(RUN | {"input": "x"}), 400, "INVALID_PARAMS")
    commands.answer = lambda _: reply()
    made = create(RUN)
    assert made.status_code == 202, made.text
    again = create(RUN)
    assert (again.status_code, again.json()) == (202, made.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert_problem(create(RUN | {"input": "x"}), 409, "idempotency_conflict")


# --- API keys


RENEWED = renewed_text(id_of(key(1)) or "", bytes(32))


@pytest.fixture(scope="module")
def keyed() -> Iterator[Client]:
    """Without hooks: two API keys, of which the first was rotated, and the keys of the settings."""
    scopes = ("instances:write", "world:write")
    rotated = ApiKeyRotated(
        id=id_of(key(1)) or "",
        digest=digest_of(RENEWED),
        previous_until_ms=10**15,
        expires_at_ms=0,
        by="admin:00000000",
        at_ms=2,
    )
    keys = MemoryApiKeys([created(1, scopes), created(2, scopes), encode(rotated)])
    commands = MemoryCommands()
    commands.answer = lambda _: reply()
    runs = RunPorts(
        rows=Runs(without_postgres()),
        keys=MemoryKeys(),
        deployments=with_active_deployment("order"),
        project_id="default",
    )
    workflows = memory_workflows(commands=commands, run_ports=runs)
    with TestClient(memory_app(workflows=workflows, api_keys=keys)) as client:
        yield client


MESSAGE = {"queueName": "order", "message": 1, "opts": {"idempotencyKey": "1"}}


@pytest.mark.parametrize(
    ("path", "body", "field", "of_settings"),
    [
        ("/v1/runs", RUN, "runId", "dev-workflow-key"),
        ("/v1/world/queue/publish", MESSAGE, "messageId", "dev-world-key"),
    ],
)
def test_each_api_key_has_idempotency_keys_of_its_own_also_after_a_rotation(
    keyed: Client, path: str, body: object, field: str, of_settings: str
):
    def create(text: str) -> str:
        headers = {"authorization": f"Bearer {text}", **ONE}
        answer = keyed.post(path, json=body, headers=headers)
        assert answer.is_success, answer.text
        run_id: str = answer.json()[field]
        return run_id

    first, second, settings = (create(text) for text in (key(1), key(2), of_settings))
    assert len({first, second, settings}) == 3
    assert [create(text) for text in (key(1), RENEWED, key(2), of_settings)] == [
        first, first, second, settings,
    ]  # fmt: skip
