"""The workflow service over HTTP: cost of creating and sending, compared with shorter paths.

Method. Gateway, worker and projector run as in production. A generator in a process of its own
creates workflows of one step, then sends events to workflows that wait for them, as many at once as
`concurrency`, and reads in `workflow-history` when a wait is over and when a workflow has ended.
Callers send the next request as soon as the last workflow has ended, except in the case `now and
then`, where a single caller pauses first, so that all waiting components are idle, as they mostly
are. The same is requested in several ways, in turn: over HTTP, where the response follows when
Postgres has the result; with `Prefer: respond-async`, where it does not wait for that; under an
idempotency key of `/v1`, of a queue and of `POST /v1/runs`, which costs two transactions more; and
over Kafka, as the gateway itself sends commands, while the projector is suspended. Runs of `/v1`
need a deployment, so the workflows are deployed and active, for all of these ways.

The generator shares the machine with what it measures: `busy` is the share of a core it used.
"""

import io
import json
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import workflow_app
from benchmarks.children import Child
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, free_port, log_progress, opened
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS

APP: Final = "benchmarks.workflow_app"
HEADWATER: Final = "headwater"
ASYNC: Final = "respond-async"
KEYED: Final = "under a key"
RUNS: Final = "POST /v1/runs"
KAFKA: Final = "over Kafka"
_HOW: Final = {HEADWATER: "http", ASYNC: "async", KEYED: "keyed", RUNS: "runs", KAFKA: "kafka"}
_WHAT: Final = {
    HEADWATER: "over HTTP, answered when Postgres has the result",
    ASYNC: "over HTTP, answered when the worker has decided",
    KEYED: "a message to a queue, under an idempotency key, which is reserved in Postgres",
    RUNS: "a run of /v1/runs under such a key, answered with its status in Postgres",
    KAFKA: "WorkflowClient alone: no HTTP, and no projector meanwhile",
}
_RATES: Final = {"create": "creates_s", "send": "events_s"}
_PATIENCE_S: Final = 90.0
_WARM: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement.

    Attributes:
        name: Its name.
        title: Its title.
        what: `create` or `send`.
        measure: Name of the value to compare.
        callers: Number of concurrent callers.
        gap_s: Seconds that a caller pauses.
    """

    name: str
    title: str
    what: str
    measure: str
    callers: int
    gap_s: float = 0.0


def _cases() -> list[Case]:
    titles = {
        "create": "Workflows of one step, from their creation to their end",
        "send": "Events to workflows that wait for them",
    }
    closed = [
        Case(
            name=f"service {what} {callers}",
            title=f"{title}, {callers} at once",
            what=what,
            measure=_RATES[what],
            callers=callers,
        )
        for what, title in titles.items()
        for callers in (1, 64)
    ]
    now_and_then = Case(
        name="service create now and then",
        title=f"{titles['create']}, one now and then",
        what="create",
        measure="answered_p50_ms",
        callers=1,
        gap_s=0.15,
    )
    return [now_and_then, *closed]


CASES: Final = _cases()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds; workflows of one caller, now and then or in a row, and of many callers."""

    rounds: int
    now_and_then: int
    one: int
    many: int

    def of(self, case: Case) -> int:
        """Return the workflows of a round."""
        if case.gap_s:
            return self.now_and_then
        return self.one if case.callers == 1 else self.many


FULL: Final = Sizes(rounds=5, now_and_then=25, one=100, many=1_500)
QUICK: Final = Sizes(rounds=2, now_and_then=15, one=50, many=600)
_FIRST: Final = Case(name="", title="", what="create", measure="", callers=1)
_WARMING: Final = [replace(_FIRST, what=what, callers=16) for what in _RATES]


class ServiceBench:
    """The processes, and the generator."""

    def __init__(self, system: System, stack: ExitStack) -> None:
        self._system = system
        key, port = DEVELOPMENT_SECRETS["workflow_key"], free_port()
        self._parts = {
            "gateway": stack.enter_context(
                system.start_process("serve", port=str(port), workflow_key=key)
            ),
            "worker": stack.enter_context(system.start_process("worker", app=APP, member="bench")),
            "projector": stack.enter_context(system.start_process("project")),
        }
        _wait_until_ready(self._parts["gateway"], port)
        _deploy(port)
        self._load = stack.enter_context(
            system.child(
                "service load", "benchmarks.service_load", system.bootstrap, str(port), key
            )
        )
        self._load.expect("ready", within_s=_PATIENCE_S)

    def warm_up(self) -> None:
        """Use every operation once in every way, however long the start takes."""
        self._request(_FIRST, KAFKA, 1)
        self._settle()
        for case in _WARMING:
            for name in _ways(case):
                self._request(case, name, _WARM)
        self._settle()

    def round(self, case: Case, name: str, count: int) -> Round:
        """Measure one way; the projector catches up before and afterwards."""
        with self._suspended(name == KAFKA):
            before = self._system.meter(**self._parts)
            report = self._request(case, name, count)
            after = self._system.meter(**self._parts)
        self._settle()
        others = before.others(after, also_ours=report["busy"] * report["seconds"])
        return Round(values={**report, "others": others}, cpu_us=before.us_per_event(after, count))

    def _request(self, case: Case, name: str, count: int) -> dict[str, float]:
        command = {
            "do": case.what,
            "how": _HOW[name],
            "count": count,
            "concurrency": case.callers,
            "gap_s": case.gap_s,
        }
        self._load.send_line(json.dumps(command))
        return self._load.expect(_RATES[case.what], within_s=_PATIENCE_S)[1]

    def _settle(self) -> None:
        self._load.send_line(json.dumps({"do": "settle"}))
        self._load.expect("settled", within_s=_PATIENCE_S)

    @contextmanager
    def _suspended(self, suspends: bool) -> Iterator[None]:
        """Suspend the projector, which would take its share of the machine."""
        if suspends:
            self._parts["projector"].suspend()
        try:
            yield
        finally:
            self._parts["projector"].resume()


def run(sizes: Sizes) -> list[Comparison]:
    """Measure creating and sending in all ways in turn, for the requested number of rounds."""
    with opened() as system, ExitStack() as stack:
        course = ServiceBench(system, stack)
        log_progress("Warming up")
        course.warm_up()
        return [_compared(course, case, sizes) for case in CASES]


def _compared(course: ServiceBench, case: Case, sizes: Sizes) -> Comparison:
    ways = _ways(case)
    rounds: dict[str, list[Round]] = {name: [] for name in ways}
    for number in range(sizes.rounds):
        for name in turns(ways, number):
            rounds[name].append(course.round(case, name, sizes.of(case)))
        figures = ", ".join(f"{n} {rounds[n][-1].values[case.measure]:,.0f}" for n in ways)
        log_progress(
            f"Round {number + 1}, {case.name.removeprefix('service ')}: {figures} ({case.measure})"
        )
    return Comparison(
        name=case.name,
        title=case.title,
        measure=case.measure,
        subject=HEADWATER,
        targets={name: Target(what=_WHAT[name], rounds=rounds[name]) for name in ways},
    )


def _ways(case: Case) -> list[str]:
    """Return the ways of a case; events of the workflow service have no key in Postgres."""
    return [name for name in _WHAT if case.what == "create" or name not in {KEYED, RUNS}]


def _deploy(port: int) -> None:
    """Deploy and activate the workflows."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as artifact:
        artifact.write(Path(workflow_app.__file__), "workflow_app.py")
    name = _posted(port, "?app=workflow_app", content.getvalue(), "application/zip")["id"]
    _posted(port, f"/{name}/activate", b"{}", "application/json")


def _posted(port: int, path: str, body: bytes, content_type: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/deployments{path}",
        data=body,
        headers={"x-admin-key": DEVELOPMENT_SECRETS["admin_key"], "content-type": content_type},
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310 (as above)
        posted: dict[str, Any] = json.load(answer)
    return posted


def _wait_until_ready(gateway: Child, port: int) -> None:
    """Wait until the gateway accepts requests and is connected to Kafka."""
    deadline = time.monotonic() + _PATIENCE_S
    url = f"http://127.0.0.1:{port}/health/ready"
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            gateway.check()
        if time.monotonic() > deadline:
            raise gateway.failure("was not ready in time")
        time.sleep(0.05)
