"""Deployments over HTTP: what is taken, what is refused and why, what is active, and the way back.

The log is in memory; apps are imported as they are in production, in processes of their own.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.gateway.api.deployments import artifact_check
from headwater.gateway.api.workflows.authorization import Denied, RequestContext, WorkflowHooks
from headwater.gateway.settings.settings import Settings
from headwater.processors.deployments import Deployments
from headwater.processors.graph.graph import graph_of
from headwater.projections.workflows.queries import DeploymentRuns, Workflows
from headwater.schemas.deployments import (
    CLOSED,
    FAILED,
    INSTALLED,
    REMOVED,
    DeployedWorkflow,
    DeploymentCreated,
    DeploymentRetired,
    EnvironmentReported,
)
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem
from tests.wheels import build_wheel

OPERATOR = {"x-admin-key": "dev-admin-key"}
USER = {"authorization": "Bearer dev-workflow-key"}
WORLD = {"authorization": "Bearer dev-world-key"}
ZIP = {"content-type": "application/zip"}
AT_MS = 1_782_900_000_000
AT = "2026-07-01T10:00:00Z"
ENDED = datetime.fromtimestamp(AT_MS / 1000, UTC)

ORDERS = """
from headwater import workflow

@workflow("order")
async def order(event, step):
    return None
"""
NONE_ACTIVE = "No active deployment. Activate a deployment before triggering runs."


def artifact(**modules: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as zipped:
        for name, source in modules.items():
            zipped.writestr(zipfile.ZipInfo(f"{name}.py"), dedent(source))
    return written.getvalue()


def version(number: int) -> bytes:
    return artifact(orders=f"{ORDERS}\nVERSION = {number}\n")


@pytest.fixture(scope="module")
def logs() -> MemoryDeployments:
    return MemoryDeployments()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def gateway(logs: MemoryDeployments, state: Path) -> Iterator[TestClient[Any]]:
    workflows = memory_workflows(deployments=logs, clock=lambda: AT_MS)
    settings = Settings(
        max_body_bytes=4096, data_dir=state, wheels=str(state / "wheels"), check_memory_mib=256
    )
    app = memory_app(settings, clock=lambda: AT_MS, workflows=workflows)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def log(logs: MemoryDeployments) -> MemoryDeployments:
    """Nothing was deployed."""
    logs.deployments, logs.artifacts = Deployments(), []
    return logs


@pytest.fixture
def client(gateway: TestClient[Any], log: MemoryDeployments) -> TestClient[Any]:
    assert not log.artifacts
    return gateway


def deploy(
    client: TestClient[Any], content: bytes, app: str = "orders", **headers: str
) -> httpx2.Response:
    provided = OPERATOR | ZIP | headers
    return client.post("/v1/deployments", params={"app": app}, content=content, headers=provided)


def steer(
    client: TestClient[Any], path: str, body: object = None, **headers: str
) -> httpx2.Response:
    content = {} if body is None else {"json": body}
    return client.post(f"/v1/deployments/{path}", headers=OPERATOR | headers, **content)  # type: ignore[arg-type]


Deployed = Callable[..., list[str]]


@pytest.fixture
def deployed(log: MemoryDeployments) -> Deployed:
    """Has deployments in the log, without importing them; gives their ids."""

    def write(*numbers: int) -> list[str]:
        for number in numbers:
            log.deployments.apply(
                DeploymentCreated(
                    id=f"dep_{number:020}",
                    app="orders",
                    digest="d",
                    size=1,
                    offset=0,
                    workflows=(DeployedWorkflow(name="order", kind="replay"),),
                    by="admin:1",
                    at_ms=AT_MS,
                )
            )
        return [f"dep_{number:020}" for number in numbers]

    return write


def refusal(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    problem = assert_problem(answer, status, code)
    assert problem["message"] == problem["detail"]
    return problem


def active(client: TestClient[Any]) -> str:
    result = client.get("/v1/deployments/active", headers=USER)
    assert result.headers["etag"] == f'"{result.json()["id"]}"'
    return str(result.json()["id"])


# --- deploying


def test_an_app_is_deployed_once(client: TestClient[Any], log: MemoryDeployments):
    content = version(1)
    first, again = deploy(client, content), deploy(client, content)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    result = first.json()
    assert re.fullmatch("dep_[0-9a-f]{20}", result.pop("id"))
    assert result == {
        "app": "orders",
        "digest": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "workflows": [{"name": "order"}],
        "schedules": [],
        "active": False,
        "deployedAt": AT,
        "deployedBy": f"admin:{hashlib.sha256(b'dev-admin-key').hexdigest()[:8]}",
    }
    assert log.artifacts == [content]
    where = first.headers["location"]
    assert client.get(where, headers=USER).json() == first.json()


def test_another_app_of_the_same_artifact_is_another_deployment(client: TestClient[Any]):
    both = artifact(orders=f"{ORDERS}\none = [order]\n")
    result = {deploy(client, both, app).json()["id"] for app in ("orders", "orders:one")}
    assert len(result) == 2


def test_a_deployment_shows_the_schemas_of_params(client: TestClient[Any]):
    typed = """
        from dataclasses import dataclass
        from headwater import WorkflowEvent, workflow

        @dataclass
        class Order:
            sku: str

        @workflow("order")
        async def order(event: WorkflowEvent[Order], step):
            return None
        """
    made = deploy(client, artifact(orders=typed)).json()
    assert made["workflows"] == [{"name": "order"}]
    whole = client.get(f"/v1/deployments/{made['id']}", headers=OPERATOR).json()
    assert "sku" in json.dumps(whole["workflows"][0]["paramsSchema"])


def test_a_package_is_deployed_with_what_it_imports(client: TestClient[Any]):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as zipped:
        zipped.writestr("shop/__init__.py", "")
        zipped.writestr("shop/prices.py", "PRICES = {}")
        zipped.writestr("shop/orders.py", f"from shop.prices import PRICES\n{ORDERS}")
    assert deploy(client, written.getvalue(), "shop.orders:order").status_code == 201


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("1 / 0", 'File "orders.py", line 1, in <module>'),
        ("import nowhere", "No module named 'nowhere'"),
        ("def", "SyntaxError"),
        ("VALUE = 1", "expected a workflow or a task in orders"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(3)", "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("from json import *; import orders_2", "No module named 'orders_2'"),
        ("MUCH = bytearray(10**9)", "It may use 256 MiB (HEADWATER_CHECK_MEMORY_MIB)"),
        (ORDERS.replace('"order"', '"headwater-x"'), "headwater"),
        (ORDERS.replace('"order"', '"a b"'), "ValueError"),
    ],
)
def test_an_app_that_cannot_be_run_is_refused_with_its_traceback(
    client: TestClient[Any], log: MemoryDeployments, source: str, told: str
):
    problem = refusal(deploy(client, artifact(orders=source)), 400, "artifact_invalid")
    assert told in problem["detail"]
    assert not re.search(r"headwater-\w{8}", problem["detail"])  # of the folder that is gone
    assert log.artifacts == []
    assert client.get("/v1/deployments", headers=USER).json()["deployments"] == []


def test_an_app_that_is_not_imported_in_time_is_refused(
    client: TestClient[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(artifact_check, "_IMPORT_S", 0.5)
    endless = artifact(orders="while True: pass")
    problem = refusal(deploy(client, endless), 400, "artifact_invalid")
    assert "expected orders to be imported within 0.5 s" in problem["detail"]


def test_an_app_sees_no_secrets_of_the_system(
    client: TestClient[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADWATER_ADMIN_KEY", "dev-admin-key")
    source = "import os\nraise RuntimeError([n for n in os.environ if n.startswith('HEADWATER_')])"
    problem = refusal(deploy(client, artifact(orders=source)), 400, "artifact_invalid")
    assert "RuntimeError: []" in problem["detail"]


def test_a_module_that_the_host_has_loaded_is_refused(client: TestClient[Any]):
    for name in ("msgspec", "typing_extensions", "uvloop", "cronsim"):
        content = artifact(orders=ORDERS, **{name: "__version__ = '99.0'"})
        problem = refusal(deploy(client, content), 400, "artifact_invalid")
        assert f"expected no module {name}.py at the top of the artifact" in problem["detail"]
        assert "list it in requirements.txt" in problem["detail"]


def with_requirements(text: str, source: str = ORDERS) -> bytes:
    written = io.BytesIO(artifact(orders=source))
    with zipfile.ZipFile(written, "a") as zipped:
        zipped.writestr(zipfile.ZipInfo("requirements.txt"), text)
    return written.getvalue()


def test_requirements_are_installed_before_the_app_is_imported(
    client: TestClient[Any], log: MemoryDeployments, state: Path
):
    line = build_wheel(state / "wheels", "prices", "1.5", {"prices.py": "ALL = ['order']\n"})
    uses = "import prices\nassert prices.ALL\n" + ORDERS
    made = deploy(client, with_requirements(line, uses))
    assert made.status_code == 201, made.text
    record = log.deployments.by_id[made.json()["id"]]
    assert record.requirements == ("prices==1.5",)
    assert record.environment_bytes > 0
    assert (len(record.environment), len(record.content)) == (64, 64)
    (environment,) = (state / "state" / "environments").glob("[0-9a-f]*")
    assert environment.name.startswith(record.environment[:32])
    stated = {"digest": record.environment, "size": record.environment_bytes, "packages": 1}
    assert made.json()["environment"] == stated
    shown = client.get(f"/v1/deployments/{record.id}", headers=USER).json()
    assert shown["environment"] == stated | {"requirements": ["prices==1.5"], "machines": []}

    def report(machine: str, reported: str, reason: str = "") -> None:
        log.deployments.apply(
            EnvironmentReported(
                id=record.id, state=reported, machine=machine, reason=reason, at_ms=AT_MS
            )
        )

    report("worker-2", FAILED, "no index")
    report("worker-1", INSTALLED)
    shown = client.get(f"/v1/deployments/{record.id}", headers=USER).json()
    assert shown["environment"]["machines"] == [
        {"machine": "worker-1", "state": "installed", "reportedAt": AT},
        {"machine": "worker-2", "state": "failed", "reason": "no index", "reportedAt": AT},
    ]
    requested = steer(client, f"{record.id}/install")
    assert (requested.status_code, requested.json()["id"]) == (200, record.id)
    assert log.deployments.installs == {record.id: 1}


def test_nothing_is_installed_again_where_nothing_is_required(
    client: TestClient[Any], log: MemoryDeployments, deployed: Deployed
):
    (name,) = deployed(1)
    assert steer(client, f"{name}/install").status_code == 200
    assert log.deployments.installs == {}
    refusal(steer(client, "dep_absent/install"), 404, "deployment_not_found")


def test_requirements_that_cannot_be_installed_are_refused_with_the_reason(
    client: TestClient[Any], log: MemoryDeployments, state: Path
):
    (state / "wheels").mkdir(exist_ok=True)
    for text, reason in (
        ("prices==1.5\n", "requirements.txt, line 1: expected hashes"),
        (f"absent==1.5 --hash=sha256:{'0' * 64}\n", "absent==1.5"),
        (f"msgspec==0.1 --hash=sha256:{'0' * 64}\n", "line 1: expected msgspec>=0."),
    ):
        problem = refusal(deploy(client, with_requirements(text)), 400, "artifact_invalid")
        assert reason in problem["detail"]
    assert log.artifacts == []


def test_schedules_are_deployed_and_shown(client: TestClient[Any]):
    source = """
    from headwater import schedule
    schedule("nightly", workflow=order, cron="0 3 * * *", timezone="Europe/Berlin")
    """
    made = deploy(client, artifact(orders=ORDERS + dedent(source)))
    assert made.status_code == 201
    nightly = {"name": "nightly", "workflow": "order", "cron": "0 3 * * *"}
    assert made.json()["schedules"] == [nightly | {"timezone": "Europe/Berlin"}]
    assert client.get("/v1/deployments", headers=USER).json()["deployments"] == [made.json()]


def test_a_schedule_that_cannot_be_is_refused(client: TestClient[Any]):
    source = """
    from headwater import schedule
    schedule("nightly", workflow="bill", cron="0 3 * * *")
    """
    problem = refusal(
        deploy(client, artifact(orders=ORDERS + dedent(source))), 400, "artifact_invalid"
    )
    assert "expected the workflow of the schedule 'nightly'" in problem["detail"]


GRAPHS = """
from headwater import GraphWorkflow, task, workflow

@task("ask")
async def ask(input):
    return {}

@workflow("bill")
async def bill(event, step):
    return None

review = GraphWorkflow(
    name="review",
    initial_node_ref="start",
    nodes=[
        {"ref": "start", "task": "noop"},
        {"ref": "ask", "task": "ask"},
        {"ref": "sign", "task": "sign", "external": True},
        {"ref": "bill", "subworkflow": "bill"},
    ],
)
without_task = [review, bill]
without_workflow = [review, ask]
tasks = [ask]
"""


def test_graphs_and_their_tasks_are_deployed(client: TestClient[Any], log: MemoryDeployments):
    made = deploy(client, artifact(orders=GRAPHS))
    assert made.status_code == 201, made.text
    bill, review = made.json()["workflows"]
    assert bill == {"name": "bill"}
    digest = review.pop("definitionDigest")
    assert review == {"name": "review", "kind": "graph"}
    result = log.deployments.workflow(made.json()["id"], "review")
    assert result is not None
    assert (result.kind, result.digest) == ("graph", digest)
    assert graph_of(json.loads(result.document or "")).digest == digest


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("orders:without_task", "its graph 'review' names at the node 'ask', the task 'ask'"),
        ("orders:without_workflow", "at the node 'bill', the workflow 'bill', found review"),
        ("orders:tasks", "expected a workflow in orders:tasks, found only tasks"),
    ],
)
def test_what_a_graph_names_and_is_not_there_is_refused(
    client: TestClient[Any], app: str, told: str
):
    problem = refusal(deploy(client, artifact(orders=GRAPHS), app), 400, "artifact_invalid")
    assert told in problem["detail"]


def test_a_graph_that_contradicts_itself_is_refused(client: TestClient[Any]):
    source = GRAPHS.replace('initial_node_ref="start"', 'initial_node_ref="nowhere"')
    problem = refusal(deploy(client, artifact(orders=source)), 400, "artifact_invalid")
    assert "INVALID_NODE_REF" in problem["detail"]


@pytest.mark.parametrize(
    ("content", "app", "told"),
    [
        (b"no zip", "orders", "expected a zip"),
        (b"", "orders", "expected a zip"),
        (b"{}", "orders", "expected a zip"),
        (artifact(orders=ORDERS), "bills", "expected the module bills in the artifact"),
        (artifact(orders=ORDERS), "orders:nothing", "expected orders to have nothing"),
        (artifact(orders=ORDERS), "tests.apps.service", "expected the module tests.apps.service"),
        (artifact(json=ORDERS), "json", "which is Python's"),
        (artifact(headwater=ORDERS), "headwater", "which is Headwater's"),
        (artifact(**{"../orders": ORDERS}), "orders", "is outside of it"),
    ],
)
def test_an_artifact_that_is_none_is_refused(
    client: TestClient[Any], content: bytes, app: str, told: str
):
    problem = refusal(deploy(client, content, app), 400, "artifact_invalid")
    assert told in problem["detail"]


@pytest.mark.parametrize(
    "app", ["", "or ders", "orders.py/", "a:b:c", "../orders", "orders\0", "ä" * 201, ".", "1a"]
)
def test_a_name_that_no_app_has_is_a_wrong_parameter(client: TestClient[Any], app: str):
    problem = refusal(deploy(client, version(1), app), 400, "invalid_parameter")
    assert problem["field"] == "app"


def test_what_is_asked_wrongly_is_named(client: TestClient[Any]):
    def ask(query: str, content: bytes = b"x", **headers: str) -> httpx2.Response:
        provided = OPERATOR | ZIP | headers
        return client.post(f"/v1/deployments{query}", content=content, headers=provided)

    missing = refusal(ask(""), 400, "invalid_parameter")
    assert missing["detail"] == "app: expected this query parameter, found none"
    assert missing["field"] == "app"
    assert refusal(ask("?app=a&ap=b"), 400, "unknown_parameter")["field"] == "ap"
    assert refusal(ask("?app=a&app=b"), 400, "invalid_parameter")["field"] == "app"
    posted = ask("?app=orders", **{"content-type": "application/json"})
    assert refusal(posted, 400, "invalid_body")["field"] == "content-type"
    assert "application/zip" in posted.json()["detail"]
    refusal(ask("?app=orders", os.urandom(5000)), 413, "body_too_large")


@pytest.mark.parametrize("kind", ["application/octet-stream", "Application/ZIP; x=y"])
def test_a_zip_may_be_called_otherwise(client: TestClient[Any], kind: str):
    assert deploy(client, version(1), **{"content-type": kind}).status_code == 201


# --- activating, and the way back


def test_nothing_is_active_before_something_was_activated(
    client: TestClient[Any], deployed: Deployed
):
    deployed(1)
    for path, key in (("deployments/active", USER), ("world/deployment-id", WORLD)):
        problem = refusal(client.get(f"/v1/{path}", headers=key), 409, "no_active_deployment")
        assert problem["message"] == NONE_ACTIVE


def test_what_was_activated_last_is_active(client: TestClient[Any], deployed: Deployed):
    one, two = deployed(1, 2)
    first = steer(client, f"{one}/activate").json()
    assert (first["id"], first["active"], first["activatedAt"]) == (one, True, AT)
    assert "replaces" not in first
    assert steer(client, f"{two}/activate").json()["replaces"] == one
    assert active(client) == two
    world = client.get("/v1/world/deployment-id", headers=WORLD)
    assert world.json() == {"deploymentId": two}
    again = steer(client, f"{two}/activate")
    assert (again.status_code, again.json().get("replaces")) == (200, None)
    listed = client.get("/v1/deployments", headers=OPERATOR).json()["deployments"]
    assert [(item["id"], item["active"]) for item in listed] == [(two, True), (one, False)]


def test_what_is_meant_to_be_replaced_has_to_be_active(client: TestClient[Any], deployed: Deployed):
    one, two, three = deployed(1, 2, 3)
    refused = steer(client, f"{one}/activate", **{"if-match": f'"{two}"'})
    assert "found none" in refusal(refused, 412, "deployment_changed")["detail"]
    assert steer(client, f"{one}/activate", **{"if-match": '"none"'}).is_success
    assert steer(client, f"{two}/activate", **{"if-match": f' "{one}" '}).is_success
    refusal(
        steer(client, f"{three}/activate", **{"if-match": f'"{one}"'}), 412, "deployment_changed"
    )
    refusal(steer(client, "rollback", **{"if-match": f'"{one}"'}), 412, "deployment_changed")
    assert active(client) == two


@pytest.mark.parametrize("tag", ["", "*", "dep_1", '"dep_1"', 'W/"dep_1"', '"none', "none"])
@pytest.mark.parametrize("path", ["dep_x/activate", "rollback"])
def test_an_if_match_that_names_no_deployment_is_refused(
    client: TestClient[Any], path: str, tag: str
):
    problem = refusal(steer(client, path, **{"if-match": tag}), 400, "invalid_parameter")
    assert problem["field"] == "If-Match"
    assert 'expected "dep_…" or "none", the quotes included' in problem["detail"]


def test_rollbacks_go_back_the_way_that_activations_came(
    client: TestClient[Any], deployed: Deployed
):
    names = deployed(1, 2, 3)
    refusal(steer(client, "rollback"), 409, "nothing_to_roll_back")
    for name in names:
        steer(client, f"{name}/activate")
    one, two, three = names
    back = steer(client, "rollback").json()
    assert (back["id"], back["replaces"], active(client)) == (two, three, two)
    named = steer(client, "rollback", {"deploymentId": one})
    assert (named.json()["id"], active(client)) == (one, one)
    again = steer(client, "rollback", {"deploymentId": one})
    assert (again.status_code, again.json()["id"]) == (200, one)
    problem = refusal(steer(client, "rollback"), 409, "nothing_to_roll_back")
    assert "activate takes any deployment" in problem["detail"]
    later = steer(client, "rollback", {"deploymentId": three})
    refusal(later, 409, "nothing_to_roll_back")


def test_who_did_not_hear_of_a_rollback_asks_again(client: TestClient[Any], deployed: Deployed):
    one, two, three = deployed(1, 2, 3)
    for name in (one, two, three):
        steer(client, f"{name}/activate")
    for _ in range(2):
        back = steer(client, "rollback", **{"if-match": f'"{three}"'})
        assert (back.status_code, back.json()["id"], active(client)) == (200, two, two)
    for _ in range(2):
        named = steer(client, "rollback", {"deploymentId": one}, **{"if-match": f'"{two}"'})
        assert (named.status_code, named.json()["id"], active(client)) == (200, one, one)
    other = steer(client, "rollback", {"deploymentId": two}, **{"if-match": f'"{two}"'})
    refusal(other, 409, "nothing_to_roll_back")
    steer(client, f"{three}/activate")
    later = steer(client, "rollback", **{"if-match": f'"{two}"'})
    refusal(later, 412, "deployment_changed")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"deploymentId": 1}, "deploymentId"),
        ({"deploymentId": ""}, "deploymentId"),
        ({"deploymentId": "d" * 65}, "deploymentId"),
        ({"deployment_id": "dep_1"}, "deployment_id"),
        ([], "body"),
        ("dep_1", "body"),
    ],
)
def test_a_rollback_that_is_asked_wrongly_is_refused(
    client: TestClient[Any], body: object, field: str
):
    problem = refusal(steer(client, "rollback", body), 400, "invalid_body")
    assert problem["field"] == field


def test_what_was_never_deployed_is_not_found(client: TestClient[Any]):
    unknown = ["dep_00000000000000000000", "x", "dep_%00", "ä", "d" * 3000]
    for name in unknown:
        requested = [
            client.get(f"/v1/deployments/{name}", headers=USER),
            steer(client, f"{name}/activate"),
        ]
        for answer in requested:
            problem = refusal(answer, 404, "deployment_not_found")
            assert problem["field"] == "deploymentId"
    refused = steer(client, "rollback", {"deploymentId": unknown[0]})
    refusal(refused, 404, "deployment_not_found")


# --- what is removed or being removed


def test_to_deploy_the_same_again_reopens_or_restores_it(
    client: TestClient[Any], log: MemoryDeployments
):
    name = deploy(client, version(1)).json()["id"]
    for stages, status in (((CLOSED,), 200), ((CLOSED, REMOVED), 201)):
        for stage in stages:
            log.deployments.apply(
                DeploymentRetired(id=name, stage=stage, closing="c", by="k", at_ms=1)
            )
        assert log.deployments.retired
        assert deploy(client, version(1)).status_code == status
        assert not log.deployments.retired
        assert steer(client, f"{name}/activate").status_code == 200
        # Another is active, so that it can be closed.
        log.deployments.activations.clear()


# --- reading


def test_answers_have_the_number_of_open_runs_unless_postgres_cannot_be_read(
    client: TestClient[Any], deployed: Deployed, monkeypatch: pytest.MonkeyPatch
):
    one, two = deployed(1, 2)
    assert "openRuns" not in client.get(f"/v1/deployments/{one}", headers=USER).json()

    async def runs_of(_: Workflows, deployments: dict[str, list[str]]) -> dict[str, DeploymentRuns]:
        assert set(deployments) <= {one, two}
        assert all(workflows == ["order"] for workflows in deployments.values())
        runs = {one: DeploymentRuns(3, None), two: DeploymentRuns(0, ENDED)}
        return {name: runs[name] for name in deployments}

    monkeypatch.setattr(Workflows, "runs_of_deployments", runs_of)
    assert client.get(f"/v1/deployments/{one}", headers=USER).json()["openRuns"] == 3
    listed = client.get("/v1/deployments", headers=USER).json()["deployments"]
    assert [(item["id"], item["openRuns"], item["status"]) for item in listed] == [
        (two, 0, "drained"),
        (one, 3, "draining"),
    ]
    assert [item.get("drainedAt") for item in listed] == [AT, None]


def test_deployments_are_listed_a_page_at_a_time(client: TestClient[Any], deployed: Deployed):
    names = deployed(1, 2, 3, 4, 5)[::-1]
    result, cursor = [], None
    while True:
        requested = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = client.get("/v1/deployments", params=requested, headers=USER).json()
        result += [deployment["id"] for deployment in page["deployments"]]
        cursor = page.get("cursor")
        assert page["hasNextPage"] is (cursor is not None)
        if cursor is None:
            break
    assert result == names


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        *((f"limit={n}", "invalid_parameter", "limit") for n in ("0", "101", "-1", "x", "1.5", "")),
        ("cursor=dep_1", "invalid_cursor", "cursor"),
        ("cursor=", "invalid_parameter", "cursor"),
        ("limit=1&limit=2", "invalid_parameter", "limit"),
        ("page=1", "unknown_parameter", "page"),
    ],
)
@pytest.mark.parametrize("key", [USER, OPERATOR])
def test_a_page_that_is_asked_for_wrongly_is_refused(
    client: TestClient[Any], query: str, code: str, field: str, key: dict[str, str]
):
    problem = refusal(client.get(f"/v1/deployments?{query}", headers=key), 400, code)
    assert problem["field"] == field


def test_keys_open_what_they_are_for(client: TestClient[Any], deployed: Deployed):
    (name,) = deployed(1)
    reads = ["/v1/deployments", f"/v1/deployments/{name}", "/v1/deployments/active"]
    for path in reads:
        for key in (OPERATOR, USER, {"x-api-key": "dev-workflow-key"}):
            assert client.get(path, headers=key).status_code in {200, 409}
        refusal(client.get(path), 401, "unauthorized")
        refusal(client.get(path, headers=WORLD), 403, "insufficient_scope")
        wrong = client.get(path, headers={"x-admin-key": "another"}).json()
        assert wrong["detail"].startswith("expected the operators' key or the key of")
    writes = ["/v1/deployments?app=orders", f"/v1/deployments/{name}/activate"]
    for path in [*writes, "/v1/deployments/rollback"]:
        refusal(client.post(path), 401, "unauthorized")
        for key in (USER, WORLD):
            refusal(client.post(path, headers=key), 403, "insufficient_scope")
    for key in ({}, {"authorization": "dev-world-key"}):
        refusal(client.get("/v1/world/deployment-id", headers=key), 401, "unauthorized")
    refusal(client.get("/v1/world/deployment-id", headers=USER), 403, "insufficient_scope")
    by_header = client.get("/v1/world/deployment-id", headers={"x-api-key": "dev-world-key"})
    refusal(by_header, 409, "no_active_deployment")


def test_hooks_decide_who_reads():
    def admitted(context: RequestContext) -> Denied | None:
        return None if context.headers.get("x-tenant") == "a" else Denied(code="TENANT")

    hooks = WorkflowHooks(authorize_request=admitted)
    with TestClient(memory_app(workflows=memory_workflows(hooks=hooks))) as client:
        assert client.get("/v1/deployments", headers={"x-tenant": "a"}).is_success
        refusal(client.get("/v1/deployments", headers=USER), 403, "TENANT")
        assert client.get("/v1/deployments", headers=OPERATOR).is_success


def test_a_broker_that_is_away_is_said_so():
    workflows = memory_workflows(deployments=MemoryDeployments(away=True))
    with TestClient(memory_app(workflows=workflows)) as client:
        for path in ("", "/active", "/x"):
            answer = client.get(f"/v1/deployments{path}", headers=USER)
            refusal(answer, 503, "broker_unavailable")
        refusal(deploy(client, version(1)), 503, "broker_unavailable")
        refusal(steer(client, "x/activate"), 503, "broker_unavailable")
