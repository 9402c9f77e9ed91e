"""Before an activation, runs are replayed against the deployment: what is refused and reported."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.gateway.settings.settings import Settings
from headwater.processors.deployments import Deployments
from headwater.projections.workflows.answers import (
    LocatedInstance,
    Page,
    instance_of,
    paged_instance_of,
)
from headwater.projections.workflows.queries import RunToReplay, Workflows
from headwater.schemas.answers import InstanceFound
from headwater.schemas.deployments import (
    DeployedWorkflow,
    DeploymentCreated,
    DeploymentLoaded,
    DeploymentRecord,
    LoadRequested,
)
from headwater.schemas.failures import DEPLOYMENT_NOT_LOADED, REPLAY_DIVERGED
from headwater.schemas.history import HistoryAppended, instance_key
from headwater.schemas.statuses import ENDED, RunStatus
from headwater.streams.workflows.code_folders import CodeFolders
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows, without_postgres
from tests.unit.gateway.test_deployment_routes import OPERATOR, artifact
from tests.unit.gateway.workflow_fakes import MemoryCommands, MemoryRuns, row
from tests.visitor import Visitor, forms, words

OLD = """
from headwater import workflow

@workflow("poll", versioning="latest")
async def poll(event, step):
    await step.do("{step}", lambda: open("/nobody/calls/a/step"))
    await step.wait_for_event("go", type="go")
"""


def code(step: str = "fetch") -> bytes:
    return artifact(orders=OLD.format(step=step))


@workflow("poll")
async def recorded(event: WorkflowEvent, step: Step) -> None:
    await step.do("fetch", lambda: 1)
    await step.wait_for_event("go", type="go")


async def _records(ids: Iterable[str], *, ended: Iterable[str]) -> dict[str, list[HistoryAppended]]:
    async with WorkflowTest([recorded]) as test:
        for instance_id in ids:
            instance = await test.create("poll", id=instance_id)
            await test.run_until_idle()
            if instance_id in ended:
                await instance.send_event("go")
                await test.run_until_idle()
        return {instance_key("poll", one): list(test.records("poll", one)) for one in ids}


class Rows(Workflows):
    """Rows of runs that a test puts here."""

    def __init__(self) -> None:
        super().__init__(without_postgres())
        self.runs: list[RunToReplay] = []

    async def runs_to_replay(
        self, workflows: Iterable[str], *, open_runs: int, ended_runs: int
    ) -> list[RunToReplay]:
        names = set(workflows)
        return [run for run in self.runs if run.workflow_name in names]

    async def runs_of_instances(self, workflow: str, ids: Iterable[str]) -> list[RunToReplay]:
        names = {instance_key(workflow, one) for one in ids}
        return [
            run for run in self.runs if instance_key(run.workflow_name, run.instance_id) in names
        ]

    async def instance(self, workflow_name: str, instance_id: str) -> LocatedInstance | None:
        located = await self.runs_of_instances(workflow_name, [instance_id])
        return instance_of(_row(located[0])) if located else None

    async def instances(
        self,
        workflow_name: str | None,
        **_: object,  # type: ignore[override]
    ) -> Page[InstanceFound]:
        runs = [run for run in self.runs if run.workflow_name == workflow_name]
        return Page(rows=tuple(paged_instance_of(_row(run)) for run in runs), cursor=None)

    async def open_by_workflow(self, workflows: Iterable[str]) -> dict[str, int]:
        names = [run.workflow_name for run in self.runs if run.status not in ENDED]
        return {name: names.count(name) for name in set(names)}


def _row(run: RunToReplay) -> dict[str, Any]:
    return row(
        workflow_name=run.workflow_name, instance_id=run.instance_id, status=run.status.value
    )


class Gate:
    """A gateway with recorded runs of `poll`."""

    def __init__(self, workers: Iterable[str] = (), **settings: Any) -> None:  # noqa: ANN401, settings
        async def running() -> list[str]:
            return list(workers)

        self.log, self.rows, self.audit = MemoryDeployments(), Rows(), MemoryAudit()
        self.runs, self.commands = MemoryRuns(), MemoryCommands()
        ports = memory_workflows(
            deployments=self.log,
            workflows=self.rows,
            runs=self.runs,
            workers=running,
            commands=self.commands,
        )
        given = Settings(max_body_bytes=4096, **({"replay_s": 300} | settings))
        self.app = memory_app(given, workflows=ports, audit=self.audit)
        self.client: TestClient[Any]

    def record(
        self, *ids: str, ended: Iterable[str] = (), deployment: str | None = None, app: bool = False
    ) -> None:
        self.runs.records |= asyncio.run(_records(ids, ended=ended))
        self.rows.runs += [
            RunToReplay(
                workflow_name="poll",
                instance_id=instance_id,
                run_number=0,
                status=RunStatus.COMPLETE if instance_id in ended else RunStatus.WAITING,
                deployment_id=deployment,
                partition=0,
                has_app=app,
                offset=0,
            )
            for instance_id in ids
        ]

    def deploy(self, content: bytes, *, latest: bool = True) -> str:
        """Put a deployment into the log without importing it, and return its id."""
        self.log.artifacts.append(content)
        number = len(self.log.artifacts) - 1
        self.log.deployments.apply(
            DeploymentCreated(
                id=f"dep_{number:020}",
                app="orders",
                digest="d",
                size=1,
                offset=number,
                workflows=(DeployedWorkflow(name="poll", kind="replay", latest=latest),),
                by="admin:1",
                at_ms=1,
            )
        )
        return f"dep_{number:020}"

    def post(self, path: str, body: object = None) -> httpx2.Response:
        more: dict[str, Any] = {} if body is None else {"json": body}
        return self.client.post(f"/v1/deployments/{path}", headers=OPERATOR, **more)

    @property
    def active(self) -> str | None:
        active = self.log.deployments.active
        return None if active is None else active.id


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    yield from opened(Gate(data_dir=tmp_path))


def opened(gate: Gate) -> Iterator[Gate]:
    gate.log.deployments = Deployments()
    with TestClient(gate.app, raise_server_exceptions=False) as client:
        gate.client = client
        yield gate


def test_a_deployment_that_open_runs_fit_is_activated_with_a_report(gate: Gate):
    gate.record("p-1", "p-2", ended=["p-2"])
    answer = gate.post(f"{gate.deploy(code())}/activate")
    assert answer.status_code == 200
    runs = answer.json()["replay"]["runs"]
    assert {run["instanceId"]: (run["fits"], run.get("moves", False)) for run in runs} == {
        "p-1": (True, True),
        "p-2": (True, False),
    }


def test_a_deployment_that_runs_would_continue_on_and_do_not_fit_is_refused(gate: Gate):
    gate.record("p-1")
    name = gate.deploy(code("load"))
    answer = gate.post(f"{name}/activate")
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["code"] == REPLAY_DIVERGED
    assert f"headwater deployments check {name}" in problem["detail"]
    (run,) = problem["report"]["runs"]
    assert run["recorded"] == {"kind": "do", "name": "fetch", "sequence": 1}
    requested = run["requested"]
    assert requested == {"kind": "do", "name": "load", "location": "orders.py:6"}
    assert gate.active is None


@pytest.mark.parametrize("path", ["activate", "rollback"])
def test_force_needs_a_reason_and_is_audited_with_it(gate: Gate, path: str):
    gate.record("p-1")
    old, new = gate.deploy(code("load")), gate.deploy(code("read"))
    for body in ({"force": True}, {"reason": "it is fixed"}, {"force": True, "reason": ""}):
        assert gate.post(f"{old}/activate", body).status_code == 400
    forced = {"force": True, "reason": "it is fixed"}
    assert gate.post(f"{old}/activate", forced).status_code == 200
    assert gate.active == old
    if path == "rollback":
        assert gate.post(f"{new}/activate", forced).status_code == 200
        assert gate.post("rollback").status_code == 409
        assert gate.post("rollback", forced).status_code == 200
        assert gate.active == old
    details = [entry.metadata for entry in gate.audit.entries if entry.result == "success"][-1]
    assert '"forced":"it is fixed"' in details
    assert '"diverged":["poll/p-1"]' in details


def test_the_console_shows_why_an_activation_is_refused_and_forces_it(gate: Gate):
    gate.record("p-1")
    name = gate.deploy(code("load"))
    visitor = Visitor(gate.client)
    refused = visitor.press("/console/deployments", "Activate", about=name)
    assert refused.status_code == 409
    assert "requested: do load at orders.py:6" in words(refused.text)
    assert gate.active is None
    (form,) = [form for form in forms(refused.text) if "Activate anyway" in form.labels]
    reason = {"reason": "it is fixed"}
    forced = gate.client.post(form.action or str(refused.url), data=form.fields | reason)
    assert "The deployment is active" in words(forced.text)
    assert gate.active == name


@pytest.mark.parametrize("why", ["pinned", "app", "ended"])
def test_runs_that_stay_on_their_code_are_reported_only(gate: Gate, why: str):
    gate.record(
        "p-1",
        ended=["p-1"] if why == "ended" else [],
        deployment="dep_old" if why == "pinned" else None,
        app=why == "app",
    )
    answer = gate.post(f"{gate.deploy(code('load'))}/activate")
    assert answer.status_code == 200
    (run,) = answer.json()["replay"]["runs"]
    assert not run["fits"]
    assert "moves" not in run


def test_a_check_changes_nothing(gate: Gate):
    gate.record("p-1")
    answer = gate.post(f"{gate.deploy(code('load'))}/check")
    assert answer.status_code == 200
    assert [run["fits"] for run in answer.json()["runs"]] == [False]
    assert gate.active is None
    assert gate.post("dep_00000000000000000009/check").status_code == 404


def test_what_was_not_looked_at_is_reported(tmp_path: Path):
    gate = Gate(data_dir=tmp_path, replay_runs=1)
    gate.record("p-1", "p-2", "p-3")
    for opened_gate in opened(gate):
        report = opened_gate.post(f"{opened_gate.deploy(code())}/check").json()
    assert len(report["runs"]) == 1
    (skipped,) = report["notReplayed"]
    assert skipped["runs"] == 2
    assert "HEADWATER_REPLAY_RUNS" in skipped["reason"]


ENDS_ITSELF = """
import os

from headwater import workflow

@workflow("poll", versioning="latest")
async def poll(event, step):
    if event.instance_id == "p-1":
        os._exit(3)
    await step.do("fetch", str)
    await step.wait_for_event("go", type="go")
"""


def test_a_run_whose_replay_ends_its_process_does_not_fit_and_others_are_replayed(gate: Gate):
    gate.record("p-1", "p-2")
    report = gate.post(f"{gate.deploy(artifact(orders=ENDS_ITSELF))}/check").json()
    results = {run["instanceId"]: run for run in report["runs"]}
    assert results["p-2"]["fits"]
    assert "ended with exit code 3" in results["p-1"]["reason"]


def test_without_postgres_only_what_may_move_runs_is_refused():
    deployments = MemoryDeployments()
    app = memory_app(Settings(max_body_bytes=4096), workflows=memory_workflows(deployments))
    gate = Gate()
    gate.log = deployments
    with TestClient(app, raise_server_exceptions=False) as client:
        gate.client = client
        latest, pinned = gate.deploy(code()), gate.deploy(code(), latest=False)
        assert gate.post(f"{latest}/activate").status_code == 503
        answer = gate.post(f"{pinned}/activate")
        assert answer.status_code == 200
        (skipped,) = answer.json()["replay"]["notReplayed"]
        assert "the runs are not known" in skipped["reason"]


def test_a_gateway_without_a_disk_still_rolls_back(tmp_path: Path):
    gate = Gate(data_dir=tmp_path)
    for opened_gate in opened(gate):
        opened_gate.record("p-1", deployment="dep_old")
        name = opened_gate.deploy(code(), latest=False)
        (tmp_path / "state").write_text("no folder")
        answer = opened_gate.post(f"{name}/activate")
        assert answer.status_code == 200
        assert "the gateway cannot replay runs" in answer.json()["replay"]["error"]


def test_a_check_leaves_no_scratch_folder(gate: Gate, tmp_path: Path):
    gate.record("p-1")
    assert gate.post(f"{gate.deploy(code())}/check").json()["runs"][0]["fits"]
    assert not list((tmp_path / "state" / "scratch").glob("*/*"))


@pytest.mark.parametrize("deployment", [None, "dep_old"])
def test_code_that_cannot_be_loaded_is_refused_if_runs_would_continue_on_it(
    gate: Gate, deployment: str | None
):
    gate.record("p-1", deployment=deployment)
    answer = gate.post(f"{gate.deploy(b'no zip')}/activate")
    if deployment is None:
        assert (answer.status_code, answer.json()["code"]) == (409, REPLAY_DIVERGED)
        assert "poll/p-1: it could not be replayed: expected a zip" in answer.json()["detail"]
    else:
        assert answer.status_code == 200
        assert "expected a zip" in answer.json()["replay"]["error"]


def test_an_installation_that_takes_longer_than_a_check_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prepare, begun, installed = CodeFolders.prepare, count(), asyncio.Event()

    async def prepare_later(folders: CodeFolders, deployment: DeploymentCreated) -> object:
        if not next(begun):
            await installed.wait()
        return await prepare(folders, deployment)

    monkeypatch.setattr(CodeFolders, "prepare", prepare_later)
    gate = Gate(data_dir=tmp_path)
    replays = gate.app.state["workflow_service"].gate
    limits = replays._limits
    for opened_gate in opened(gate):
        opened_gate.record("p-1")
        name = opened_gate.deploy(code())
        replays._limits = limits._replace(seconds=2)
        report = opened_gate.post(f"{name}/check").json()
        assert "still installing its packages (HEADWATER_REPLAY_S)" in report["error"]
        assert next(begun) == 1
        replays._limits = limits
        opened_gate.client.blocking_portal.call(installed.set)
        assert opened_gate.post(f"{name}/check").json()["runs"][0]["fits"]


# -- workers


def answering(gate: Gate, **errors: str) -> None:
    """Let workers answer the requests to load a deployment, as soon as they are written."""
    write = gate.log.write

    async def write_and_answer(record: DeploymentRecord) -> object:
        outcome = await write(record)
        if isinstance(record, LoadRequested):
            for worker, error in errors.items():
                answer = DeploymentLoaded(
                    id=record.id, request=record.request, worker=worker, error=error, at_ms=1
                )
                await write(answer)
        return outcome

    gate.log.write = write_and_answer  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("path", ["activate", "check"])
def test_a_worker_that_cannot_load_the_code_is_named_with_its_reason(tmp_path: Path, path: str):
    gate = Gate(data_dir=tmp_path, workers=["one", "two"])
    for opened_gate in opened(gate):
        answering(opened_gate, one="", two="no module named needed")
        name = opened_gate.deploy(code(), latest=False)
        answer = opened_gate.post(f"{name}/{path}")
        report = answer.json()
        if path == "activate":
            assert (answer.status_code, report["code"]) == (409, DEPLOYMENT_NOT_LOADED)
            assert "two: no module named needed" in report["detail"]
            assert opened_gate.active is None
            report = report["report"]
        assert report["workers"] == [
            {"worker": "one", "loaded": True},
            {"worker": "two", "loaded": False, "reason": "no module named needed"},
        ]


def test_a_worker_that_does_not_answer_is_named_and_nothing_is_refused(tmp_path: Path):
    gate = Gate(data_dir=tmp_path, workers=["one", "two"], load_check_s=1)
    for opened_gate in opened(gate):
        answering(opened_gate, one="")
        answer = opened_gate.post(f"{opened_gate.deploy(code())}/activate")
        assert answer.status_code == 200
        assert answer.json()["replay"]["workers"] == [
            {"worker": "one", "loaded": True},
            {"worker": "two", "loaded": False, "answered": False},
        ]


def installing(gate: Gate, error: str) -> None:
    """Let a worker answer that it installs packages, and two seconds later with an error."""
    write, catch_up, looks = gate.log.write, gate.log.catch_up, count()

    async def write_and_install(record: DeploymentRecord) -> object:
        outcome = await write(record)
        if isinstance(record, LoadRequested):
            await write(loaded(record, installing=True))
        return outcome

    async def install_later() -> Deployments:
        for request in list(gate.log.deployments.load_requests.values()):
            if next(looks) == 8:
                await write(loaded(request, error=error))
        return await catch_up()

    gate.log.write = write_and_install  # type: ignore[method-assign, assignment]
    gate.log.catch_up = install_later  # type: ignore[method-assign]


def test_a_worker_that_installs_packages_is_awaited(tmp_path: Path):
    gate = Gate(data_dir=tmp_path, workers=["one"], load_check_s=1)
    for opened_gate in opened(gate):
        reason = "no module named needed"
        installing(opened_gate, reason)
        report = opened_gate.post(f"{opened_gate.deploy(code())}/check").json()
        assert report["workers"] == [{"worker": "one", "loaded": False, "reason": reason}]
        assert opened_gate.log.discarded_loads == ["one"]


def loaded(request: LoadRequested, **changes: Any) -> DeploymentLoaded:  # noqa: ANN401, fields
    fields: dict[str, Any] = {"worker": "one", "error": "", "at_ms": 1}
    return DeploymentLoaded(id=request.id, request=request.request, **(fields | changes))
