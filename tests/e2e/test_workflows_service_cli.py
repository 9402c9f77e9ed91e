"""Workflows over HTTP, by command line and client: real Kafka, Postgres, gateway and worker."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result

from headwater import Client, InstanceExistsError, InstanceFailedError
from headwater.gateway.cli.main import cli
from headwater.projections.postgres.migrate import migrate
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.topics import create_topics
from tests.e2e.system import free_port
from tests.throwaway_kafka import ThrowawayKafka
from tests.waiting import wait_until

PATIENCE_S = 120.0
KEY = "a-key-of-our-own"

APP = '''
"""Somebody's workflows."""

from headwater import NonRetryableError, Retry, Step, WorkflowEvent, workflow

tried: list[int] = []


def fetch() -> int:
    tried.append(1)
    if len(tried) == 1:
        raise ConnectionError("not yet")
    return 125


@workflow("shop")
async def shop(event: WorkflowEvent[dict[str, str]], step: Step) -> dict[str, object]:
    price = await step.do("fetch", fetch, retries=Retry(limit=3, delay="50 ms"))
    await step.log.info("fetched", {"price": price}, category="shop")
    approval = await step.wait_for_event("approval", type="approval", timeout="1 hour")
    await step.log.warn("approved", category="shop")
    return {"sku": event.payload["sku"], "price": price, "by": approval.payload}


@workflow("till")
async def till(event: WorkflowEvent[None], step: Step) -> str:
    def charge() -> str:
        if event.run_number == 0:
            raise NonRetryableError("no such card")
        return "charged"

    await step.do("reserve", lambda: "kept")
    return await step.do("charge", charge)
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("app")
    (directory / "shopping.py").write_text(APP)
    return directory


@contextlib.contextmanager
def parts(app: Path, environment: dict[str, str]) -> Iterator[None]:
    """Runs gateway, projector and worker."""
    running = []
    try:
        for command in (["serve"], ["project"], ["worker", "--app", "shopping"]):
            variables = {**environment, "HEADWATER_MEMBER": f"cli-{command[0]}"}
            argv = [sys.executable, "-m", "headwater", *command]
            running.append(subprocess.Popen(argv, cwd=app, env=variables))
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


@pytest.fixture
def own_kafka(scratch: Path) -> Iterator[str]:
    """A broker that has the topics, and no history of others."""
    broker = ThrowawayKafka(scratch / "kafka of the command line", port=0, report=print)
    try:
        bootstrap = broker.start()
        asyncio.run(create_topics(Cluster(bootstrap), partitions=4, replication=1))
        yield bootstrap
    finally:
        broker.kill()


@pytest.fixture
def base_url(
    app: Path, own_kafka: str, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    port = free_port()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    environment = {
        **ours,
        "HEADWATER_KAFKA": own_kafka,
        "HEADWATER_POSTGRES": fresh_database,
        "HEADWATER_PORT": str(port),
        "HEADWATER_WORKFLOW_KEY": KEY,
        "HEADWATER_LOG_LEVEL": "warning",
    }
    migrate(fresh_database, print)
    for name in ("HEADWATER_URL", "HEADWATER_HEADERS", "HEADWATER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWATER_WORKFLOW_KEY", KEY)
    monkeypatch.setenv("HEADWATER_PORT", str(port))
    url = f"http://127.0.0.1:{port}/api/workflows"
    with parts(app, environment):
        wait_until(lambda: {"shop", "till"} <= set(listed(url)))
        yield url


def listed(url: str) -> list[str]:
    """The workflows that a gateway knows; none while it is not there yet."""
    try:
        result = httpx2.get(f"{url}/workflows", headers={"x-api-key": KEY}, timeout=5)
    except httpx2.TransportError:
        return []
    return (
        [workflow["name"] for workflow in result.json()["workflows"]] if result.is_success else []
    )


def headwater(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result


def fields(*on: str) -> dict[str, str]:
    shown = headwater("instances", "get", *on, "--full").stdout
    return dict(row.split("\t", 1) for row in shown.splitlines()[1:])


def columns(text: str, first: int, last: int) -> list[tuple[str, ...]]:
    return [tuple(row.split("\t")[first:last]) for row in text.splitlines()]


@contextlib.contextmanager
def following(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a command beside the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def with_client(url: str, deed: Callable[[Client], Awaitable[Any]]) -> object:
    async def run() -> object:
        async with Client(url, key=KEY) as client:
            return await deed(client)

    return asyncio.run(run())


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"expected a line with {text!r}, found {lines}")


def test_instances_live_and_are_looked_after_over_http(base_url: str):
    assert "shop\ntill\n" in headwater("workflows", "list").stdout
    life_of_an_order(base_url)
    a_till_that_is_tried_again(base_url)
    signals_and_ends(base_url)
    refusals()
    a_client_of_a_program(base_url)


def life_of_an_order(url: str) -> None:
    on = ("-w", "shop", "-i", "s-1")
    made = headwater("instances", "create", *on, "--params", '{"sku": "ü"}')
    assert made.stdout == "s-1\n"
    wait_until(
        lambda: fields(*on)["status"] == "waiting" and "approval" in fields(*on).get("step", "")
    )
    assert fields(*on)["state"].startswith("waiting for event approval, until 20")
    with following("instances", "logs", *on, "--follow") as logs:
        read_until(logs, "fetched")
        headwater("instances", "pause", *on)
        paused = "paused until it is resumed; it is at approval:"
        wait_until(lambda: fields(*on)["state"].startswith(paused))
        headwater("instances", "resume", *on)
        headwater("instances", "send-event", *on, "--type", "approval", "--payload", '"me"')
        read_until(logs, "approved")
        assert logs.wait(PATIENCE_S) == 0
        assert logs.stderr is not None
        assert "shop/s-1 has ended: complete" in logs.stderr.read()
    result = fields(*on)
    assert (result["status"], result["params"]) == ("complete", '{"sku": "ü"}')
    assert result["output"] == '{"sku": "ü", "price": 125, "by": "me"}'
    history = headwater("instances", "history", *on, "--include-logs", "--log-category", "shop")
    steps, events, logs_shown = (part.split("\n", 1)[1] for part in history.stdout.split("# ")[1:])
    assert columns(steps, 1, 5)[1:] == [
        ("✓ completed", "fetch", "do", "2 of 4"),
        ("✓ completed", "approval", "wait_for_event", ""),
    ]
    assert columns(events, 1, 4)[1:] == [("approval", "approval", '"me"')]
    # A worker that takes over may write a line again.
    messages = [row[-1] for row in columns(logs_shown, 5, 6)[1:]]
    assert list(dict.fromkeys(messages)) == ["fetched", "approved"]
    shown = headwater("instances", "logs", *on, "--log-level", "warn", "--limit", "1").stdout
    assert columns(shown, 4, 5)[1:] == [("approved",)]
    complete = headwater("instances", "list", "-w", "shop", "--status", "complete").stdout
    assert columns(complete, 0, 2)[1:] == [("shop/s-1", "complete")]


def a_till_that_is_tried_again(url: str) -> None:
    async def fail(client: Client) -> None:
        instance = await client.workflow("till").create("t-1")
        with pytest.raises(InstanceFailedError, match="NonRetryableError: no such card"):
            await instance.result("1 minute")

    with_client(url, fail)
    on = ("-w", "till", "-i", "t-1")
    assert fields(*on)["error"] == "NonRetryableError: no such card"
    headwater("instances", "retry", *on, "--from-step", "charge")
    wait_until(lambda: fields(*on)["run"] == "1")
    assert with_client(url, lambda c: c.workflow("till").get("t-1").result("1 minute")) == "charged"
    first = headwater("instances", "history", *on, "--run", "0").stdout
    assert columns(first, 1, 4)[2:] == [
        ("✓ completed", "reserve", "do"),
        ("✗ errored", "charge", "do"),
    ]


def signals_and_ends(url: str) -> None:
    on = ("-w", "shop", "-i", "s-2")
    start = ("--start-if-missing", "--params", '{"sku": "y"}')
    headwater("instances", "send-event", *on, "--type", "approval", *start)
    done = with_client(url, lambda c: c.workflow("shop").get("s-2").result("1 minute"))
    assert done == {"sku": "y", "price": 125, "by": None}
    headwater("instances", "restart", *on)
    wait_until(lambda: fields(*on)["run"] == "1")
    with following("instances", "logs", *on, "--follow") as logs:
        read_until(logs, "fetched")
        logs.send_signal(signal.SIGINT)
        out, said = logs.communicate(timeout=PATIENCE_S)
        assert (logs.returncode, out, said) == (130, "", "\n")
    headwater("instances", "terminate", *on)
    wait_until(lambda: fields(*on)["status"] == "terminated")


def refusals() -> None:
    def refused(arguments: Sequence[str]) -> str:
        return headwater("instances", *arguments, code=1).stderr.strip()

    nobody = refused(["get", "-w", "shop", "-i", "nobody"])
    assert nobody.startswith("Error: INSTANCE_NOT_FOUND: ")
    assert nobody.endswith("`headwater instances list` shows those that exist")
    ended = refused(["pause", "-w", "shop", "-i", "s-2"])
    assert ended.startswith("Error: INSTANCE_TERMINAL: ")
    assert "HEADWATER_WORKFLOW_KEY" in refused(["list", "-w", "shop", "--key", "wrong-key"])
    assert "WORKFLOW_NOT_FOUND" in refused(["list", "-w", "nothing"])
    assert "INSTANCE_NOT_ERRORED" in refused(["retry", "-w", "shop", "-i", "s-2"])


def a_client_of_a_program(url: str) -> None:
    async def play(client: Client) -> None:
        shop = client.workflow("shop")
        made = await shop.create_batch([{"id": f"b-{n}", "params": {"sku": "z"}} for n in range(3)])
        assert [one.id for one in made] == ["b-0", "b-1", "b-2"]
        again = await shop.create_batch([{"id": "b-0"}, {"id": "b-3", "params": {"sku": "z"}}])
        assert [one.id for one in again] == ["b-3"]
        with pytest.raises(InstanceExistsError):
            await shop.create("b-0")
        for one in (*made, *again):
            await one.send_event("approval", one.id)
        results = await asyncio.gather(*(one.result("1 minute") for one in (*made, *again)))
        assert [result["by"] for result in results] == ["b-0", "b-1", "b-2", "b-3"]
        listed = [one.id async for one in shop.instances("complete", page_size=2)]
        assert {"b-0", "b-1", "b-2", "b-3", "s-1"} == set(listed)
        items = [item.event async for item in made[0].follow()]
        assert items[-1] == "end"
        assert {"status", "step", "event", "log"} <= set(items)

    with_client(url, play)
