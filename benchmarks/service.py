"""The workflow service over HTTP: what creating and sending cost, beside ways with less in between.

Method. Gateway, worker and projector run as production runs them. A generator in a process of its
own creates workflows of one step, then sends events to workflows that wait for them, as many at
once as `concurrency`, and reads in `workflow-history`, acknowledged and durable, when a wait is
over and when a workflow has ended. Callers ask for the next as soon as the last has ended, but for
the case `now and then`, where a single one rests first: so all that waits for anything is idle, as
it mostly is. The same is asked in three ways, in turn: over HTTP, where an
answer follows when Postgres has what came of it; with `Prefer: respond-async`, where it does not
wait for that; and over Kafka, as the gateway itself sends commands, while the projector is held.

The generator shares the machine with what it measures: `busy` is the share of a core it used.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.children import Child
from benchmarks.house import House, free_port, opened, say
from benchmarks.results import Comparison, Round, Target, turns
from headwater.gateway.loopback import DEVELOPMENT_SECRETS

APP: Final = "benchmarks.workflow_app"
HEADWATER: Final = "headwater"
ASYNC: Final = "respond-async"
KAFKA: Final = "over Kafka"
_HOW: Final = {HEADWATER: "http", ASYNC: "async", KAFKA: "kafka"}
_WHAT: Final = {
    HEADWATER: "over HTTP, answered when Postgres has what came of it",
    ASYNC: "over HTTP, answered when the worker has decided",
    KAFKA: "WorkflowClient alone: no HTTP, and nobody projects meanwhile",
}
_RATES: Final = {"create": "creates_s", "send": "events_s"}
_PATIENCE_S: Final = 90.0
_WARM: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured.

    Shape:  what is `create` or `send`; measure the value that ways are compared by.
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
        """The workflows of a round."""
        if case.gap_s:
            return self.now_and_then
        return self.one if case.callers == 1 else self.many


FULL: Final = Sizes(rounds=5, now_and_then=25, one=100, many=1_500)
QUICK: Final = Sizes(rounds=2, now_and_then=15, one=50, many=600)
_FIRST: Final = Case(name="", title="", what="create", measure="", callers=1)
_WARMING: Final = [replace(_FIRST, what=what, callers=16) for what in _RATES]


class Course:
    """The parts, and the generator."""

    def __init__(self, house: House, stack: ExitStack) -> None:
        self._house = house
        key, port = DEVELOPMENT_SECRETS["workflow_key"], free_port()
        self._parts = {
            "gateway": stack.enter_context(house.part("serve", port=str(port), workflow_key=key)),
            "worker": stack.enter_context(house.part("worker", app=APP, member="bench")),
            "projector": stack.enter_context(house.part("project")),
        }
        _wait_until_ready(self._parts["gateway"], port)
        self._load = stack.enter_context(
            house.child("service load", "benchmarks.service_load", house.bootstrap, str(port), key)
        )
        self._load.expect("ready", within_s=_PATIENCE_S)

    def warm_up(self) -> None:
        """Asks for everything once in every way, however long the start takes."""
        self._ask(_FIRST, KAFKA, 1)
        self._settle()
        for name in _HOW:
            for case in _WARMING:
                self._ask(case, name, _WARM)
        self._settle()

    def round(self, case: Case, name: str, count: int) -> Round:
        """Measures one way; the projector has caught up before and afterwards."""
        with self._held(name == KAFKA):
            before = self._house.meter(**self._parts)
            found = self._ask(case, name, count)
            after = self._house.meter(**self._parts)
        self._settle()
        others = before.others(after, also_ours=found["busy"] * found["seconds"])
        return Round(values={**found, "others": others}, cpu_us=before.each(after, count))

    def _ask(self, case: Case, name: str, count: int) -> dict[str, float]:
        asked = {
            "do": case.what,
            "how": _HOW[name],
            "count": count,
            "concurrency": case.callers,
            "gap_s": case.gap_s,
        }
        self._load.tell(json.dumps(asked))
        return self._load.expect(_RATES[case.what], within_s=_PATIENCE_S)[1]

    def _settle(self) -> None:
        self._load.tell(json.dumps({"do": "settle"}))
        self._load.expect("settled", within_s=_PATIENCE_S)

    @contextmanager
    def _held(self, held: bool) -> Iterator[None]:
        """Holds the projector, which would take its share of the machine."""
        if held:
            self._parts["projector"].hold()
        try:
            yield
        finally:
            self._parts["projector"].let_go()


def run(sizes: Sizes) -> list[Comparison]:
    """Measures creating and sending, in every way, in turn, for as many rounds as asked."""
    with opened() as house, ExitStack() as stack:
        course = Course(house, stack)
        say("Warming up")
        course.warm_up()
        return [_compared(course, case, sizes) for case in CASES]


def _compared(course: Course, case: Case, sizes: Sizes) -> Comparison:
    rounds: dict[str, list[Round]] = {name: [] for name in _WHAT}
    for number in range(sizes.rounds):
        for name in turns(list(_WHAT), number):
            rounds[name].append(course.round(case, name, sizes.of(case)))
        found = ", ".join(f"{n} {rounds[n][-1].values[case.measure]:,.0f}" for n in _WHAT)
        say(f"Round {number + 1}, {case.name.removeprefix('service ')}: {found} ({case.measure})")
    return Comparison(
        name=case.name,
        title=case.title,
        measure=case.measure,
        subject=HEADWATER,
        targets={name: Target(what=_WHAT[name], rounds=rounds[name]) for name in _WHAT},
    )


def _wait_until_ready(gateway: Child, port: int) -> None:
    """Waits until the gateway takes requests and has Kafka."""
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
