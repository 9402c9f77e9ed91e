"""From the raw topic to rows in Postgres: events per second, compared with three alternatives.

Method. The consumer under test is running and warm, idle at the end of its raw topic. It is
suspended (SIGSTOP), another process appends the load, and the consumer is resumed (SIGCONT): the
clock runs from then until the last row is committed in Postgres. So the whole load is available at
once, and the figure excludes appending it, start-up, group join and first connections. It includes
the ramp from an empty pipeline to a full one and back. Five deliveries make a row, two thousand
deliveries apart, so that merging is work for the state and not for the batch.

All processes of all targets run all the time; those not measured are idle. Headwater is done when
every row and every outcome is in Postgres.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString, Protocol

import psycopg
from aiokafka import AIOKafkaConsumer

from benchmarks import topics
from benchmarks.children import BenchmarkFailed, Child
from benchmarks.payloads import rows_of
from benchmarks.profiles import Profiler
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.system import System, log_progress, opened
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import OUTCOMES, WEBHOOKS

#: A worker that is suspended for longer would lose its partitions (10 s) when it is resumed.
_HELD_MAX_S: Final = 7.0
_PATIENCE_S: Final = 120.0
#: Precision of the end: 1 % of the shortest round, at 2 % of a core.
_CHECK_EVERY_S: Final = 0.01
#: Between rounds, so that commits and flushes of one do not fall into the next.
_SETTLE_S: Final = 0.5
#: Events before the first round: connections are made, tables looked up, code is imported.
_WARM: Final = 200

#: Quix Streams has an environment of its own: it needs other versions of what Headwater pins.
_PYTHON_OF_QUIX: Final = Path(__file__).parent.parent / ".venv-bench" / "bin" / "python"

HEADWATER: Final = "headwater"
BY_HAND: Final = "by hand"
FAUST: Final = "stock Faust"
QUIX: Final = "Quix Streams"
QUIX_DEFAULT: Final = "Quix Streams, default"
#: Seconds between checkpoints: shorter intervals cost more than they save. And its default.
_QUIX_CHECKPOINTS_S: Final = {QUIX: 0.5, QUIX_DEFAULT: 5.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds, and the events of a round."""

    rounds: int
    headwater: int
    by_hand: int
    faust: int
    quix: int


FULL: Final = Sizes(rounds=5, headwater=50_000, by_hand=50_000, faust=6_000, quix=50_000)
QUICK: Final = Sizes(rounds=2, headwater=10_000, by_hand=20_000, faust=2_000, quix=20_000)


class Contestant(Protocol):
    """An implementation that reads the raw topic and writes rows to Postgres."""

    @property
    def name(self) -> str:
        """Return its name in tables."""

    @property
    def topic(self) -> str:
        """Return its raw topic."""

    @property
    def consumer(self) -> Child:
        """Return the process that reads the raw topic, and is suspended."""

    @property
    def parts(self) -> dict[str, Child]:
        """Return all its processes."""

    def wait(self, total: int) -> tuple[float, dict[str, float]]:
        """Wait until a total number of events, of all rounds, is in Postgres.

        Returns:
            When that was, and other times by name, in perf_counter seconds.
        """

    def stored(self) -> dict[str, int]:
        """Return the number of rows in Postgres, and of outcomes if it has any."""


class Headwater:
    """Pipeline worker and projector as separate processes, as in production."""

    name = HEADWATER
    topic = WEBHOOKS

    def __init__(self, system: System, stack: ExitStack) -> None:
        self.consumer = stack.enter_context(system.start_process("worker"))
        self.projector = stack.enter_context(system.start_process("project"))
        self.parts = {"worker": self.consumer, "projector": self.projector}
        self._connection = stack.enter_context(psycopg.connect(system.dsn, autocommit=True))
        self._bootstrap = system.bootstrap
        #: Records in the topic of outcomes that are none: the claims of writers.
        self._others = 0

    def wait(self, total: int) -> tuple[float, dict[str, float]]:
        """Poll the projection's offsets: all outcomes, and all rows appended before them."""
        self._when(OUTCOMES, total + self._others)
        # All remaining rows were appended before the outcomes.
        done = self._when(DAILY_SUMMARY.topic, asyncio.run(_end(self._bootstrap)))
        self._others = self._applied(OUTCOMES) - total
        latest = self._connection.execute("select max(at) from webhook_outcomes").fetchone()
        assert latest is not None
        ago = time.time() - latest[0].timestamp()
        # Wall clock to perf_counter: when the worker began its last batch.
        return done, {"worker_s": time.perf_counter() - ago}

    def _when(self, topic: str, offset: int) -> float:
        deadline = time.monotonic() + _PATIENCE_S
        while self._applied(topic) < offset:
            for part in self.parts.values():
                part.check()
            if time.monotonic() > deadline:
                raise self.consumer.failure(f"was not done within {_PATIENCE_S:.0f} s")
            time.sleep(_CHECK_EVERY_S)
        return time.perf_counter()

    def _applied(self, topic: str) -> int:
        query = "select coalesce(sum(next_offset), 0) from projection_offsets where topic = %s"
        row = self._connection.execute(query, (topic,)).fetchone()
        return int(row[0]) if row else 0

    def stored(self) -> dict[str, int]:
        """Return the number of rows, and of outcomes of processed deliveries."""
        processed = "select count(*) from webhook_outcomes where status = 'processed'"
        return {
            "rows": self._count("select count(*) from daily_summary"),
            "outcomes": self._count(processed),
        }

    def _count(self, query: LiteralString) -> int:
        row = self._connection.execute(query).fetchone()
        return int(row[0]) if row else 0


async def _end(bootstrap: str) -> int:
    """Return how many records the topic of the rows has had."""
    consumer = AIOKafkaConsumer(DAILY_SUMMARY.topic, bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        return sum((await consumer.end_offsets(consumer.assignment())).values())
    finally:
        await consumer.stop()


class Rival:
    """An alternative: one process that reports how many rows it has written."""

    def __init__(
        self,
        system: System,
        stack: ExitStack,
        *,
        name: str,
        topic: str,
        command: Sequence[str],
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self.topic = topic
        module, *arguments = command
        whole = (f"benchmarks.{module}", system.bootstrap, system.dsn, *arguments)
        self.consumer = stack.enter_context(system.child(name, *whole, python=python))
        self.parts = {name: self.consumer}
        self._table = topic.replace("-", "_")
        self._dsn = system.dsn

    def wait(self, total: int) -> tuple[float, dict[str, float]]:
        """Wait for its report. What it waited for a checkpoint does not count."""
        while True:
            at, report = self.consumer.expect("rows", within_s=_PATIENCE_S)
            if report["rows"] >= total:
                return at - report.get("idle_s", 0.0), {}

    def stored(self) -> dict[str, int]:
        """Return the number of rows in its table."""
        with psycopg.connect(self._dsn) as connection:
            row = connection.execute(f"select count(*) from {self._table}".encode()).fetchone()  # noqa: S608 (ours)
        return {"rows": int(row[0]) if row else 0}


class Trial:
    """A contestant and the number of events it has had."""

    def __init__(self, system: System, contestant: Contestant, events: int) -> None:
        self.contestant = contestant
        self._system = system
        self._events = events
        self._had = 0

    def send_first(self) -> None:
        """Send a few events."""
        with self._load(_WARM) as append:
            append()
        self._had = _WARM

    def wait_for_first(self) -> None:
        """Wait until those are in Postgres, however long the start takes."""
        self.contestant.wait(_WARM)

    def run(self, profiler: Profiler | None = None) -> Round:
        """Measure a round."""
        contestant, system = self.contestant, self._system
        with self._load(self._events) as append:
            contestant.consumer.suspend()
            append()
            before = system.meter(**contestant.parts)
            began = time.perf_counter()
            contestant.consumer.resume()
            with _profiled(profiler, contestant):
                ended, marks = contestant.wait(self._had + self._events)
            after = system.meter(**contestant.parts)
        self._had += self._events
        self._verify()
        took = ended - began
        return Round(
            values={
                "events_s": round(self._events / took, 1),
                "events": self._events,
                "seconds": round(took, 3),
                "others": before.others(after),
                **{name: round(at - began, 3) for name, at in marks.items()},
            },
            cpu_us=before.us_per_event(after, self._events),
        )

    @contextmanager
    def _load(self, count: int) -> Iterator[Callable[[], None]]:
        arguments = (self._system.bootstrap, self.contestant.topic, str(self._had), str(count))
        with self._system.child("preload", "benchmarks.preload", *arguments) as preload:
            preload.expect("built", within_s=_PATIENCE_S)

            def append() -> None:
                began = time.monotonic()
                preload.send_line("go")
                preload.expect("appended", within_s=_PATIENCE_S)
                took = time.monotonic() - began
                if took > _HELD_MAX_S:
                    raise BenchmarkFailed(f"appending took {took:.1f} s: too long to suspend it")

            yield append

    def _verify(self) -> None:
        for what, count in self.contestant.stored().items():
            expected = {"rows": rows_of(self._had), "outcomes": self._had}[what]
            if count != expected:
                raise BenchmarkFailed(
                    f"{self.contestant.name}: expected {expected} {what} in Postgres, found {count}"
                )


@contextmanager
def _profiled(profiler: Profiler | None, contestant: Contestant) -> Iterator[None]:
    if profiler is None or contestant.name != HEADWATER:
        yield
    else:
        with profiler.watching({name: part.pid for name, part in contestant.parts.items()}):
            yield


def run(sizes: Sizes, profiler: Profiler | None) -> Comparison:
    """Measure all contestants in turn, for the requested number of rounds."""
    with opened() as system, ExitStack() as stack:
        system.make_topics(*topics.ALL)
        trials = _trials(system, stack, sizes)
        # Request all stops at once at the end: a stop takes a second or two.
        for part in (part for trial in trials for part in trial.contestant.parts.values()):
            stack.callback(part.ask_to_stop)
        log_progress("Warming up")
        for trial in trials:
            trial.send_first()
        for trial in trials:
            trial.wait_for_first()
        rounds: dict[str, list[Round]] = {trial.contestant.name: [] for trial in trials}
        for number in range(sizes.rounds):
            for trial in turns(trials, number):
                time.sleep(_SETTLE_S)
                measured = trial.run(profiler)
                rounds[trial.contestant.name].append(measured)
                rate = measured.values["events_s"]
                log_progress(f"Round {number + 1}: {trial.contestant.name} {rate:,.0f} events/s")
    return _comparison(rounds)


def _trials(system: System, stack: ExitStack, sizes: Sizes) -> list[Trial]:
    rival = partial(Rival, system, stack)

    if not _PYTHON_OF_QUIX.exists():
        raise BenchmarkFailed("Quix Streams is not installed here; `make bench` installs it")

    def quix(name: str, topic: str) -> Rival:
        command = ("quix", topic, topic.replace("-", "_"), str(_QUIX_CHECKPOINTS_S[name]))
        return rival(name=name, topic=topic, command=command, python=str(_PYTHON_OF_QUIX))

    contestants: list[tuple[Contestant, int]] = [
        (rival(name=BY_HAND, topic=topics.BY_HAND, command=["by_hand"]), sizes.by_hand),
        (Headwater(system, stack), sizes.headwater),
        (rival(name=FAUST, topic=topics.FAUST, command=["stock_faust"]), sizes.faust),
        (quix(QUIX, topics.QUIX), sizes.quix),
        (quix(QUIX_DEFAULT, topics.QUIX_DEFAULT), sizes.quix),
    ]
    return [Trial(system, contestant, events) for contestant, events in contestants]


def _comparison(rounds: dict[str, list[Round]]) -> Comparison:
    what: dict[str, Any] = {
        HEADWATER: "worker and projector: no duplicates, outcomes, the origin of every value",
        BY_HAND: "one aiokafka loop: parse, merge, produce, upsert",
        FAUST: "Faust's own transport and table, one event at a time",
        QUIX: "Quix Streams: state on disk with its changelog, rows produced and upserted",
        QUIX_DEFAULT: "the same with checkpoints every 5 s",
    }
    targets = {name: Target(what=what[name], rounds=rounds[name]) for name in what}
    return Comparison(
        name="pipeline",
        title="From the raw topic to rows in Postgres, 2 KB daily deliveries",
        measure="events_s",
        subject=HEADWATER,
        targets=targets,
    )
