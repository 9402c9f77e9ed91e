"""Workflows from the command line, as their author would run them."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from headwater.gateway.settings.addresses import dsn_of
from headwater.gateway.settings.environment import load_settings
from headwater.schemas.history import Command, ReplySent, SendEvent, StartRun
from tests.e2e.system import free_port
from tests.waiting import until
from tests.workflow_parts import a_client, started

PATIENCE_S = 120.0

APP = '''
"""Somebody's workflows."""

from headwater import Retry, Step, WorkflowEvent, workflow

tried: list[int] = []


def fetch() -> int:
    tried.append(1)
    if len(tried) == 1:
        raise ConnectionError("not yet")
    return 125


@workflow("order")
async def order(event: WorkflowEvent[dict[str, str]], step: Step) -> dict[str, object]:
    price = await step.do("fetch", fetch, retries=Retry(limit=3, delay="100 ms"))
    await step.sleep("cool off", "200 ms")
    await step.do("keep", lambda tx: tx.execute("insert into orders values (%s)", [price]))
    approval = await step.wait_for_event("approval", type="approval", timeout="1 minute")
    return {"sku": event.payload["sku"], "price": price, "by": approval.payload}
'''


@contextlib.contextmanager
def headwater(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the command line in a directory of the user's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        cwd=directory,
        env={**ours, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of stderr up to one that has a text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"expected a line with {text!r}, found {lines}")


async def send(kafka: str, instance_id: str, *commands: Command) -> list[ReplySent]:
    async with started(a_client(kafka, timeout_s=PATIENCE_S)) as client:
        await until(lambda: client.ready)
        return [await client.send("order", instance_id, command) for command in commands]


def eventually(dsn: str, query: str, expected: Sequence[tuple[object, ...]]) -> None:
    """Waits until Postgres answers what is expected."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with psycopg.connect(dsn) as connection:
            result = connection.execute(query.encode()).fetchall()
        if result == list(expected):
            return
        assert time.monotonic() < deadline, result
        time.sleep(0.1)


def test_up_runs_an_app_beside_the_rest(tmp_path: Path, scratch: Path):
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "workflows.py").write_text(APP)
    kafka, postgres = free_port(), free_port()
    with headwater(
        tmp_path,
        *("up", "--no-demo", "--app", "my_package.workflows"),
        *("--data-dir", str(scratch / "up-app"), "--port", str(free_port())),
        *("--kafka-port", str(kafka), "--postgres-port", str(postgres)),
    ) as up:
        lines = read_until(up, "Headwater is up at")
        assert lines[0] == "Workflows of my_package.workflows: order"
        assert any(line.startswith("workflows is ready") for line in lines)
        dsn = dsn_of(load_settings(data_dir=scratch / "up-app", postgres_port=postgres))
        with psycopg.connect(dsn) as connection:
            connection.execute("create table orders (price integer)")
        approval = SendEvent("e1", "approval", '"me"')
        replies = asyncio.run(
            send(f"127.0.0.1:{kafka}", "order-1", StartRun('{"sku": "x"}'), approval)
        )
        assert [reply.code for reply in replies] == ["", ""]
        eventually(
            dsn,
            "select status, output ->> 'sku', output ->> 'price' from workflow_instance "
            "where workflow_name = 'order'",
            [("complete", "x", "125")],
        )
        eventually(
            dsn,
            "select name, type, status, attempts from workflow_step "
            "where workflow_name = 'order' order by ordinal",
            [
                ("fetch", "do", "completed", 2),
                ("cool off", "sleep", "completed", 0),
                ("keep", "do", "completed", 1),
                ("approval", "wait_for_event", "completed", 0),
            ],
        )
        eventually(dsn, "select price from orders", [(125,)])
        up.send_signal(signal.SIGTERM)
        stopped = read_until(up, "kafka stopped")
        assert stopped[0].startswith("workflows stopped")
        assert up.wait(PATIENCE_S) == 0


def test_the_demo_shows_a_workflow_to_its_end(tmp_path: Path, scratch: Path):
    with headwater(
        tmp_path,
        *("up", "--demo", "--data-dir", str(scratch / "up-demo"), "--port", str(free_port())),
        *("--kafka-port", str(free_port()), "--postgres-port", str(free_port())),
    ) as up:
        shown, said = up.communicate(timeout=2 * PATIENCE_S)
    assert up.returncode == 0, said
    _, _, workflow = shown.partition("# workflow day-report")
    rows = [line.split("\t")[:3] for line in workflow.splitlines()[2:]]
    assert rows == [
        ["read the day", "do", "completed"],
        ["let it settle", "sleep", "completed"],
        ["approval", "wait_for_event", "completed"],
        ["write", "do", "completed"],
    ]
    assert "user_amara on 2026-07-01: 11894 steps, resting heart rate 49" in workflow
    # Who plays Terra knows them then: asked for more of their days, it would else call them gone.
    with contextlib.closing(
        sqlite3.connect(scratch / "up-demo" / "terra-stand-in.sqlite")
    ) as terra:
        people = terra.execute("select reference_id, provider from people order by 1").fetchall()
    assert people == [("user_amara", "GARMIN"), ("user_bo", "WHOOP")]


def test_a_worker_that_crashes_says_so_and_ends_with_70(tmp_path: Path, topics: str):
    (tmp_path / "mine.py").write_text(APP)
    crash = (
        "from headwater.gateway.cli.work import run_workflows\n"
        "from headwater.gateway.settings.environment import load_settings\n"
        f"settings = load_settings(app='mine', kafka={topics!r})\n"
        "try:\n"
        "    run_workflows(settings, clock=lambda: 1 // 0, ticked=False, reload=False)\n"
        "except Exception as error:\n"
        "    raise SystemExit(error.exit_code)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", crash],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 70
    assert "the worker ends, to restart from committed state" in run.stderr
    assert "ZeroDivisionError" in run.stderr


def test_two_apps_that_declare_the_same_workflow_are_refused(tmp_path: Path):
    for name in ("orders", "billing"):
        (tmp_path / f"{name}.py").write_text(APP)
    for command in (["worker"], ["up", "--no-demo", "--data-dir", "data", "--port", "0"]):
        arguments = [*command, "--app", "orders", "--app", "billing", "--kafka", "127.0.0.1:1"]
        with headwater(tmp_path, *arguments) as refused:
            _, said = refused.communicate(timeout=PATIENCE_S)
        assert refused.returncode == 2, said
        assert (
            "expected each workflow in one app, found the workflow 'order' in orders and in "
            "billing; give one of them another name"
        ) in said


def test_an_app_is_named_once_and_the_own_of_the_system_alone(tmp_path: Path):
    for apps in ("orders,orders", "orders,headwater", "orders,"):
        with headwater(tmp_path, "worker", "--app", apps) as refused:
            _, said = refused.communicate(timeout=PATIENCE_S)
        assert refused.returncode == 2
        assert (
            "HEADWATER_APP: expected apps separated by commas, each once; headwater, which is "
            f"always served, alone, found {apps!r}"
        ) in said
