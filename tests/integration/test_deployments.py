"""Deployments as people and programs handle them: gateways on a real broker, commands, rows."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx2
import msgspec
import psycopg
import pytest

from headwater import Client, UnauthorizedError
from headwater.gateway.client.deployments import ARTIFACT_BYTES_MAX, zipped
from headwater.schemas.failures import CommandRefusedError
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.deployment_log import DeploymentLog
from tests.commands import called
from tests.databases import new_database
from tests.e2e.system import ADMIN, System, opened
from tests.visitor import visiting, words
from tests.wheels import build_wheel

ZIP = ADMIN | {"content-type": "application/zip"}
USER = {"authorization": "Bearer dev-workflow-key"}
WORLD = {"authorization": "Bearer dev-world-key"}
ORDERS = """
from headwater import workflow

@workflow("order")
async def order(event, step):
    return None
"""


WHEELS = "wheels"


@pytest.fixture(scope="module")
def system(scratch: Path, postgres: str) -> Iterator[System]:
    directory = scratch / "deployments"
    directory.mkdir()
    with new_database(postgres) as dsn:
        wheels = str(directory / WHEELS)
        system = System(directory, dsn, HEADWATER_APP="headwater", HEADWATER_WHEELS=wheels)
        with opened(system, ("gateway", "gateway2", "project")):
            yield system


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The folder of an app that is no other's."""
    folder = tmp_path / "app"
    folder.mkdir()
    write(folder, "orders.py", ORDERS, f"SELF = {str(tmp_path)!r}")
    return folder


def write(folder: Path, name: str, *sources: str) -> None:
    position = folder / name
    position.parent.mkdir(parents=True, exist_ok=True)
    position.write_text("\n".join(dedent(source) for source in sources))


def post(system: System, path: str, gateway: str = "gateway", **more: Any) -> httpx2.Response:  # noqa: ANN401 (as httpx2)
    return httpx2.post(f"{system.url(gateway)}/v1/{path}", timeout=60, **more)


def deploy(system: System, content: bytes, gateway: str = "gateway") -> httpx2.Response:
    params = {"app": "orders"}
    return post(system, "deployments", gateway, params=params, content=content, headers=ZIP)


def get(system: System, path: str, gateway: str = "gateway2", **headers: str) -> httpx2.Response:
    return httpx2.get(f"{system.url(gateway)}/v1/{path}", headers=headers or USER, timeout=60)


def headwater(
    system: System, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line, as a user has it."""
    return called("deployments", *arguments, cwd=cwd, HEADWATER_URL=system.url())


def version(app: Path, number: int) -> bytes:
    write(app, "version.py", f"VERSION = {number}")
    return zipped(app)


# --- over HTTP


def test_what_one_gateway_answers_the_other_knows(system: System, app: Path):
    first, second = (deploy(system, version(app, number)).json() for number in (1, 2))
    assert first.items() <= get(system, f"deployments/{first['id']}").json().items()
    listed = get(system, "deployments?limit=2").json()["deployments"]
    assert [item["id"] for item in listed] == [second["id"], first["id"]]
    assert deploy(system, version(app, 2), "gateway2").status_code == 200
    for name in (first["id"], second["id"]):
        assert post(system, f"deployments/{name}/activate", headers=ADMIN).is_success
        world = get(system, "world/deployment-id", **WORLD)
        assert world.json() == {"deploymentId": name}
    back = post(system, "deployments/rollback", "gateway2", headers=ADMIN).json()
    assert (back["id"], back["replaces"]) == (first["id"], second["id"])
    assert get(system, "deployments/active", "gateway").json()["id"] == first["id"]


def test_the_same_deployed_at_once_is_one_deployment(system: System, app: Path):
    content = version(app, 3)
    with ThreadPoolExecutor(4) as pool:
        names = ["gateway", "gateway2"] * 2
        result = list(pool.map(lambda name: deploy(system, content, name), names))
    assert sorted(item.status_code for item in result) == [200, 200, 200, 201]
    assert len({item.json()["id"] for item in result}) == 1
    assert len({item.json()["deployedAt"] for item in result}) == 1


def test_of_those_who_replace_the_same_deployment_at_once_one_does(system: System, app: Path):
    begun, *others = (deploy(system, version(app, number)).json()["id"] for number in range(10, 16))
    post(system, f"deployments/{begun}/activate", headers=ADMIN)
    tag = ADMIN | {"if-match": f'"{begun}"'}

    def activate(number: int) -> httpx2.Response:
        name = ("gateway", "gateway2")[number % 2]
        return post(system, f"deployments/{others[number]}/activate", name, headers=tag)

    with ThreadPoolExecutor(len(others)) as pool:
        result = list(pool.map(activate, range(len(others))))
    taken = [item.json()["id"] for item in result if item.is_success]
    assert [item.json()["code"] for item in result if item.is_error] == ["deployment_changed"] * 4
    assert [get(system, "deployments/active").json()["id"]] == taken
    with ThreadPoolExecutor(2) as pool:
        gateways = ("gateway", "gateway2")
        backs = list(
            pool.map(lambda name: post(system, "deployments/rollback", name, headers=tag), gateways)
        )
    assert {back.status_code for back in backs} == {412}  # It names the one that is gone.


def test_an_artifact_of_the_largest_size_is_what_workers_read(system: System, app: Path):
    (app / "data.bin").write_bytes(os.urandom(ARTIFACT_BYTES_MAX - 4_096))
    content = zipped(app)
    made = deploy(system, content)
    assert made.status_code == 201, made.text

    async def read() -> bytes:
        log = DeploymentLog(cluster=Cluster(system.bootstrap), client_id="tests-deployments")
        try:
            return await log.artifact((await log.catch_up()).by_id[made.json()["id"]])
        finally:
            await log.stop()

    assert asyncio.run(read()) == content
    larger = deploy(system, content + os.urandom(8_192))
    assert (larger.status_code, larger.json()["code"]) == (413, "body_too_large")
    assert larger.json()["message"] == larger.json()["detail"]


def test_rows_tell_what_is_deployed_and_active(system: System, app: Path):
    name = deploy(system, version(app, 4)).json()["id"]
    post(system, f"deployments/{name}/activate", headers=ADMIN)

    def told() -> bool:
        with psycopg.connect(system.dsn) as connection:
            rows = connection.execute(
                "select d.app, d.workflows from settings s join deployment d on d.id = s.value"
                " where s.key = 'active_deployment' and d.id = %s and d.activated_at is not null",
                [name],
            ).fetchall()
        return rows == [("orders", ["order"])]

    system.wait(told, "the row of the active deployment")


@pytest.fixture
def busy(app: Path) -> Path:
    """What is there once the app is being imported: the first time takes a minute."""
    marker = app.parent / "imported"
    write(
        app,
        "orders.py",
        ORDERS,
        f"""
        import pathlib, time
        marker = pathlib.Path({str(marker)!r})
        if not marker.exists():
            marker.touch()
            time.sleep(60)
        """,
    )
    return marker


def test_a_gateway_that_died_while_it_deployed_is_asked_again(
    system: System, app: Path, busy: Path
):
    content = zipped(app)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(deploy, system, content, "gateway2")
        system.wait(busy.exists, "the app to be imported")
        system.kill("gateway2")
        with pytest.raises(httpx2.TransportError):
            lost.result()
    system.start("gateway2")
    made = deploy(system, content, "gateway2")
    assert made.status_code == 201
    shown = get(system, f"deployments/{made.json()['id']}", "gateway").json()
    assert made.json().items() <= shown.items()


def test_a_gateway_that_ends_waits_for_no_import(system: System, app: Path, busy: Path):
    content = zipped(app)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(deploy, system, content, "gateway2")
        system.wait(busy.exists, "the app to be imported")
        system.parts["gateway2"].send_signal(signal.SIGTERM)
        answer = first.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert system.parts.pop("gateway2").wait(60) == 0
    system.start("gateway2")
    assert deploy(system, content, "gateway2").status_code == 201


# --- in the console


def test_the_console_activates_and_rolls_back_unless_somebody_else_has(system: System, app: Path):
    first, second, third = (
        str(deploy(system, version(app, number)).json()["id"]) for number in (11, 12, 13)
    )
    at = "/console/deployments"
    with visiting(system.url()) as visitor:
        assert "The deployment is active" in words(visitor.press(at, "Activate", about=first).text)
        assert get(system, "deployments/active").json()["id"] == first
        assert "The deployment is active" in words(visitor.press(at, "Activate", about=second).text)
        assert "is active again" in words(visitor.press(at, "Roll back").text)
        assert get(system, "deployments/active").json()["id"] == first
        # Somebody looks at the page, and somebody else activates meanwhile.
        post(system, f"deployments/{third}/activate", headers=ADMIN)
        late = visitor.press(at, "Activate", about=second, replaces=first)
        assert late.status_code == 412
        assert "deployment_changed" in words(late.text)
        assert f"{third} active 100 % 0 orders order admin:" in words(visitor.page(at))


# --- by commands


def test_a_folder_is_deployed_activated_and_rolled_back_by_commands(system: System, app: Path):
    made = headwater(system, "deploy", str(app), "--app", "orders", "--json")
    assert made.returncode == 0, made.stderr
    first = json.loads(made.stdout)
    assert not first["active"]
    assert made.stderr == ""
    again = headwater(system, "deploy", ".", "--app", "orders", "--json", cwd=app)
    assert json.loads(again.stdout)["id"] == first["id"]
    assert headwater(system, "activate", first["id"]).returncode == 0
    write(app, "version.py", "VERSION = 2")
    second = json.loads(
        headwater(system, "deploy", str(app), "--app", "orders", "--activate", "--json").stdout
    )
    assert (second["active"], second["replaces"]) == (True, first["id"])
    shown = headwater(system, "show")
    assert f"{second['id']}\tyes\t0\tactive\torders\torder\t" in shown.stdout
    assert "order\tpinned" in shown.stdout
    listed = headwater(system, "list", "--limit", "2").stdout.splitlines()
    assert [line.split("\t")[:2] for line in listed[1:]] == [
        [second["id"], "yes"],
        [first["id"], "no"],
    ]
    back = headwater(system, "rollback", "--replaces", second["id"])
    assert back.stdout.splitlines()[1].startswith(f"{first['id']}\tyes")
    assert f"Runs that began on {second['id']} stay on it" in back.stderr


def test_a_wheel_is_deployed_as_it_is(system: System, tmp_path: Path):
    write(tmp_path, "shop/__init__.py", "")
    write(tmp_path, "shop/orders.py", ORDERS)
    write(
        tmp_path,
        "pyproject.toml",
        """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "shop"
        version = "1.0"
        [tool.setuptools]
        packages = ["shop"]
        """,
    )
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    made = headwater(system, "deploy", str(wheel), "--app", "shop.orders", "--json")
    assert json.loads(made.stdout)["size"] == wheel.stat().st_size


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("deploy", "nowhere", "--app", "orders"), 2, "'nowhere' does not exist"),
        (("deploy", "."), 2, "Missing option '--app'"),
        (("deploy", ".", "--app", ""), 1, "invalid_parameter: app: expected"),
        (("deploy", ".", "--app", "bills"), 1, "expected the module bills in the artifact"),
        (("deploy", ".", "--app", "broken"), 1, 'File "broken.py", line 1'),
        (("deploy", "orders.py", "--app", "orders"), 1, "artifact_invalid: expected a zip"),
        (("deploy", "empty", "--app", "orders"), 2, "expected modules of Python in empty"),
        (("deploy", "linked", "--app", "orders"), 2, "linked/orders.py, a link or a device"),
        (("deploy", "large", "--app", "orders"), 2, "the largest are data.bin, orders.py"),
        (("deploy", ".", "--app", "orders", "--admin-key", "another-key"), 1, "unauthorized"),
        (("activate",), 2, "Missing argument 'ID'"),
        (("activate", "dep_x"), 1, "deployment_not_found"),
        (("activate", ""), 2, "expected a name or an id, found nothing"),
        (("activate", "dep_x", "--replaces", "x"), 1, 'If-Match: expected "dep_…" or "none"'),
        (("show", "dep/x"), 1, "deployment_not_found"),
        (("rollback", "dep_x"), 1, "deployment_not_found"),
        (("rollback", ""), 1, "invalid_body: deploymentId"),
        (("list", "--limit", "0"), 2, "--limit"),
        (("list", "--url", "http://127.0.0.1:1"), 1, "expected Headwater at http://127.0.0.1:1"),
    ],
)
def test_commands_say_what_is_wrong(
    system: System, app: Path, arguments: tuple[str, ...], code: int, told: str
):
    write(app, "broken.py", "1 / 0")
    (app / "empty").mkdir()
    write(app, "empty/readme.txt", "")
    write(app, "large/orders.py", ORDERS)
    (app / "large" / "data.bin").write_bytes(b"\0" * ARTIFACT_BYTES_MAX)
    if "linked" in arguments:
        (app / "linked").mkdir()
        (app / "linked" / "orders.py").symlink_to(app / "orders.py")
    if arguments[:2] == ("deploy", "."):
        (app / "large" / "data.bin").unlink()
    result = headwater(system, *arguments, cwd=app)
    assert (result.returncode, result.stdout) == (code, "")
    assert told in result.stderr


def doctor(system: System) -> dict[str, Any]:
    """What is found of the active deployment."""
    result = called(
        *("doctor", "--json"),
        HEADWATER_URL=system.url(),
        HEADWATER_KAFKA=system.bootstrap,
        HEADWATER_POSTGRES=system.dsn,
    )
    reported = {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}
    return dict(reported["deployment"])


def test_the_doctor_reads_what_is_active_as_workers_do(system: System, app: Path):
    name = deploy(system, version(app, 20)).json()["id"]
    post(system, f"deployments/{name}/activate", headers=ADMIN)
    result = doctor(system)
    assert (result["state"], result["found"]) == ("ok", f"{name} of orders: order")

    async def lose() -> None:
        log = DeploymentLog(cluster=Cluster(system.bootstrap), client_id="tests-deployments")
        try:
            whole = (await log.catch_up()).by_id[name]
            lost = msgspec.structs.replace(whole, id="dep_00", digest="0" * 64)
            await log.write(lost)
        finally:
            await log.stop()

    asyncio.run(lose())
    assert post(system, "deployments/dep_00/activate", headers=ADMIN).is_success
    result = doctor(system)
    assert (result["state"], result["next"]) == ("problem", "headwater deployments rollback")
    assert "expected the artifact 000" in result["found"]
    assert headwater(system, "rollback").returncode == 0
    assert doctor(system)["state"] == "ok"


# --- and what comes of it

SHIPPING = """
from headwater import workflow
from version import VERSION

@workflow("shipping")
async def shipping(event, step):
    await step.wait_for_event("go", type="go")
    return VERSION

@workflow("poll", versioning="latest")
async def poll(event, step):
    await step.do(FETCH, str)
    await step.wait_for_event("go", type="go")
"""


TYPED = """
from dataclasses import dataclass
from headwater import WorkflowEvent, workflow

@dataclass
class Parcel:
    weight: int

@workflow("parcel", concurrency=3)
async def parcel(event: WorkflowEvent[Parcel], step):
    return None
"""


def test_workflows_that_are_deployed_are_known_before_they_have_runs(system: System, app: Path):
    write(app, "orders.py", TYPED)
    known = f"{system.url('gateway2')}/api/workflows/workflows"
    unknown = httpx2.get(f"{known}/parcel/instances", headers=USER)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "WORKFLOW_NOT_FOUND")
    name = deploy(system, zipped(app)).json()["id"]
    # At once, whether its row is there or not.
    assert httpx2.get(f"{known}/parcel/instances", headers=USER).json()["instances"] == []
    post(system, f"deployments/{name}/activate", headers=ADMIN)

    def listed() -> dict[str, Any]:
        result = httpx2.get(known, headers=USER, timeout=60).json()["workflows"]
        return next((item for item in result if item["name"] == "parcel"), {})

    system.wait(lambda: "concurrency" in listed(), "the workflow to be listed")
    assert listed()["concurrency"]["limit"] == 3
    assert "weight" in json.dumps(listed()["paramsSchema"])


def test_new_runs_begin_on_what_is_active_and_stay_there(system: System, app: Path):
    write(app, "orders.py", SHIPPING, "FETCH = 'fetch'")
    system.start("worker")
    api = f"{system.url()}/api/workflows/workflows/shipping/instances"

    def release(number: int) -> str:
        write(app, "version.py", f"VERSION = {number}")
        done = headwater(system, "deploy", str(app), "--app", "orders", "--activate", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def create(name: str) -> None:
        made = httpx2.post(api, json={"id": name}, headers=USER, timeout=60)
        assert made.is_success, made.text

    write(app, "version.py", "VERSION = 0")
    idle = deploy(system, zipped(app)).json()["id"]

    def told() -> str:
        return str(httpx2.post(api, json={"id": "none"}, headers=USER, timeout=60).json()["detail"])

    system.wait(lambda: f"; {idle} has it but is not active: " in told(), "where it is said")
    one = release(1)
    create("before")
    two = release(2)
    create("between")
    assert headwater(system, "rollback").returncode == 0
    create("after")
    for name, output, deployment in (("before", 1, one), ("between", 2, two), ("after", 1, one)):
        httpx2.post(f"{api}/{name}/events", json={"type": "go"}, headers=USER, timeout=60)
        actual = ended(system, f"{api}/{name}")
        assert actual["details"]["output"] == output
        assert actual["meta"]["deploymentId"] == deployment
    checks_runs_that_follow_the_code(system, app)
    checks_moves(system, app)
    checks_an_environment(system, app)
    system.stop("worker")


def checks_runs_that_follow_the_code(system: System, app: Path) -> None:
    """An activation replays open runs, and refuses if those that would move do not fit."""
    api = f"{system.url()}/api/workflows/workflows/poll/instances"
    url = {"HEADWATER_URL": system.url()}
    assert httpx2.post(api, json={"id": "p-1"}, headers=USER, timeout=60).is_success

    def waits() -> bool:
        row = httpx2.get(f"{api}/p-1", headers=USER, timeout=60).json()
        return bool(row.get("details", {}).get("status") == "waiting")

    system.wait(waits, "the run to wait")
    active = get(system, "deployments/active").json()["id"]
    checks_that_workers_can_load(system, app)
    folder = app.parent / "histories"
    exported = called("histories", "export", str(folder), "-w", "poll", **url)
    assert exported.returncode == 0, exported.stderr
    assert called("check-replay", str(folder), "--app", "orders", cwd=app).returncode == 0
    write(app, "version.py", "VERSION = 3")
    write(app, "orders.py", SHIPPING, "FETCH = 'load'")
    differs = called("check-replay", str(folder), "--app", "orders", cwd=app)
    assert (differs.returncode, differs.stderr) == (1, "")
    assert "poll/p-1, run 0: the code does not reach fetch, which is recorded" in differs.stdout
    name = deploy(system, zipped(app)).json()["id"]
    checked = headwater(system, "check", name)
    assert checked.returncode == 1
    assert "    recorded: do fetch, event 1\n    requested: do load at orders.py:" in checked.stdout
    refused = post(system, f"deployments/{name}/activate", headers=ADMIN)
    assert (refused.status_code, refused.json()["code"]) == (409, "replay_diverged")
    assert get(system, "deployments/active").json()["id"] == active
    forced = headwater(system, "activate", name, "--force", "--reason", "it is ended", "--json")
    assert forced.returncode == 0, forced.stderr
    report = json.loads(forced.stdout)["replay"]
    assert [run["fits"] for run in report["runs"] if run.get("moves")] == [False]
    # What has ended stays as it is, whatever other code returns.
    assert any(run["workflowName"] == "shipping" for run in report["runs"])


def create_in(system: System, workflow: str, name: str) -> str:
    """Create an instance, and return its URL."""
    api = f"{system.url()}/api/workflows/workflows/{workflow}/instances"
    made = httpx2.post(api, json={"id": name}, headers=USER, timeout=60)
    assert made.is_success, made.text
    return f"{api}/{name}"


def ended(system: System, instance: str) -> dict[str, Any]:
    """Wait for the end of an instance."""
    rows: list[dict[str, Any]] = []

    def is_complete() -> bool:
        rows[:] = [httpx2.get(instance, headers=USER, timeout=60).json()]
        return bool(rows[0]["details"]["status"] == "complete")

    system.wait(is_complete, f"{instance} to end", 120)
    return rows[0]


def checks_moves(system: System, app: Path) -> None:
    """A run is moved only to code that it fits."""
    held = create_in(system, "shipping", "held")
    write(app, "version.py", "VERSION = 4")
    write(app, "orders.py", SHIPPING, "FETCH = 'fetch'")
    fits = deploy(system, zipped(app)).json()["id"]
    write(app, "orders.py", SHIPPING.replace('"go", type', '"stop", type'), "FETCH = 'fetch'")
    differs = deploy(system, zipped(app)).json()["id"]
    for dry_run in (True, False):
        body = {"deployment": differs, "dryRun": dry_run}
        refused = httpx2.post(f"{held}/move", json=body, headers=USER, timeout=120)
        assert (refused.status_code, refused.json()["code"]) == (409, "replay_diverged")
        assert "go, event" in refused.json()["detail"]
    url = {"HEADWATER_URL": system.url()}
    moved = called("instances", "move", "shipping/held", "--to", fits, **url)
    assert moved.returncode == 0, moved.stderr
    httpx2.post(f"{held}/events", json={"type": "go"}, headers=USER, timeout=60)
    row = ended(system, held)
    assert (row["details"]["output"], row["meta"]["deploymentId"]) == (4, fits)


GREETS = """
import greeting
from headwater import workflow

@workflow("greets")
async def greets(event, step):
    return await step.do("greet", lambda: greeting.TEXT)
"""


def checks_an_environment(system: System, app: Path) -> None:
    """A deployment brings its packages, which gateway and worker install from a folder."""
    files = {"greeting.py": "TEXT = 'hello'\n"}
    line = build_wheel(system.directory / WHEELS, "greeting", "1.0", files)
    write(app, "orders.py", GREETS)
    write(app, "requirements.txt", line)
    done = headwater(system, "deploy", str(app), "--app", "orders", "--activate", "--json")
    assert done.returncode == 0, done.stderr
    deployed = json.loads(done.stdout)
    assert [load["loaded"] for load in deployed["replay"]["workers"]] == [True]
    assert ended(system, create_in(system, "greets", "g-1"))["details"]["output"] == "hello"

    def is_installed() -> bool:
        shown = get(system, f"deployments/{deployed['id']}").json()
        return [machine["state"] for machine in shown["environment"]["machines"]] == ["installed"]

    system.wait(is_installed, "the state of the environment", 60)
    write(app, "requirements.txt", build_wheel(app.parent / "none", "greeting", "2.0", files))
    missing = headwater(system, "deploy", str(app), "--app", "orders")
    assert missing.returncode == 1
    assert "greeting==2.0" in missing.stderr


def checks_that_workers_can_load(system: System, app: Path) -> None:
    """An activation is refused if a worker cannot load the code, which it names with the reason."""
    needed = app.parent / "needed"
    needed.touch()
    imports = f"open({str(needed)!r}).close()"
    write(app, "orders.py", SHIPPING, "FETCH = 'fetch'", imports)
    name = deploy(system, zipped(app)).json()["id"]
    needed.unlink()
    refused = post(system, f"deployments/{name}/activate", headers=ADMIN)
    assert (refused.status_code, refused.json()["code"]) == (409, "deployment_not_loaded")
    (load,) = refused.json()["report"]["workers"]
    assert load["worker"].startswith("workflows ")
    assert "FileNotFoundError" in load["reason"]
    write(app, "orders.py", SHIPPING, "FETCH = 'fetch'")


# --- by programs


def test_a_program_deploys_activates_and_reads(system: System, app: Path):
    async def scenario() -> None:
        async with Client(
            f"{system.url()}/api/workflows", key="dev-workflow-key", admin_key="dev-admin-key"
        ) as client:
            names = client.deployments
            one = await names.deploy(app, app="orders")
            write(app, "version.py", "VERSION = 2")
            two = await names.deploy(zipped(app), app="orders")
            assert (await names.activate(one.id)).active
            assert (await names.activate(two.id, replaces=one.id)).replaces == one.id
            with pytest.raises(CommandRefusedError) as refused:
                await names.activate(one.id, replaces=one.id)
            assert refused.value.code == "deployment_changed"
            assert (await names.active()).id == two.id
            assert (await names.rollback(replaces=two.id)).id == one.id
            assert (await names.rollback(one.id)).id == one.id
            assert [item.id async for item in names.all()][:2] == [two.id, one.id]
            with pytest.raises(CommandRefusedError) as broken:
                await names.deploy(app, app="bills")
            assert broken.value.code == "artifact_invalid"
            with pytest.raises(ValueError, match="expected a name or an id"):
                await names.get("")

    asyncio.run(scenario())


def test_who_has_the_key_of_workflows_alone_reads_and_does_not_deploy(system: System, app: Path):
    async def scenario() -> None:
        async with Client(f"{system.url()}/api/workflows", key="dev-workflow-key") as client:
            assert (await client.deployments.page(limit=1)).deployments
            with pytest.raises(UnauthorizedError, match="the scope deployments:write"):
                await client.deployments.deploy(app, app="orders")

    asyncio.run(scenario())
