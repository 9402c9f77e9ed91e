"""Workflows from the command line, as their author would run them."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.system import free_port

PATIENCE_S = 120.0

APP = '''
"""Somebody's workflows."""

from headwater import Step, WorkflowEvent, workflow


@workflow("order")
async def order(event: WorkflowEvent[dict[str, str]], step: Step) -> str:
    approval = await step.wait_for_event("approval", type="approval", timeout="1 minute")
    return str(approval.payload)
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
