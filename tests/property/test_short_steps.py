"""The short way of a step's result does what the general one does, whatever came before."""

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.code.engine import ReplayEngine
from headwater.processors.code.host_messages import BeginRollback, Open, Raise, Suspend
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import (
    HostFailed,
    Reached,
    Request,
    RetryPolicy,
    StepRaised,
    StepReturned,
    StepUnderWay,
)
from headwater.processors.runs.host_messages import AttemptStarted, Requested
from headwater.schemas.history import (
    CancelRun,
    Command,
    CommandSent,
    Failure,
    PauseRun,
    Post,
    RestartRun,
    ResumeRun,
    RetryRun,
    SendEvent,
    StartRun,
)
from headwater.schemas.statuses import EntryKind
from headwater.streams.engine.code import Code
from headwater.streams.engine.commands import RunSizeLimit
from headwater.streams.engine.committing import Committer
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner

INSTANCES = ("a", "b")
KEYS = tuple(f"step-{number}" for number in range(8))
ENTRIES_MAX = 7
RUN_BYTES_MAX = 24_000
POLICY = RetryPolicy(1, 1_000, "constant")
FAILURE = Failure("Error", "no")


class Subject:
    """An owner of one workflow, and a clock."""

    def __init__(self, *, short: bool) -> None:
        self.engine = ReplayEngine(ENTRIES_MAX)
        if not short:
            self.engine.short_steps = None  # type: ignore[assignment]
        numbers = count(1)
        self.owner = Owner(
            0,
            Claims(epoch=0),
            LiveInstances({ReplayEngine.kind: self.engine}),
            code=Code({"order": ReplayEngine.kind}, hosts={"order": 0}),
            number_activations=lambda _: next(numbers),
            draw_seed=lambda: "seed",
            size_limit=RunSizeLimit(RUN_BYTES_MAX),
        )
        self.now_ms = 1_000
        self._offsets = count()

    def command(self, instance: str, command: Command) -> None:
        offset = next(self._offsets)
        sent = CommandSent(
            command_id=f"c-{offset}",
            workflow="order",
            instance_id=instance,
            sent_at_ms=self.now_ms,
            reply_to=0,
            command=command,
        )
        self.owner.receive(offset, sent, self.now_ms)

    def ask(self, instance: str, request: Request) -> None:
        live = self.owner.instances.find(f"order/{instance}")
        if live is not None and live.activation is not None:
            self.owner.handle([Requested(live.activation, request)], self.now_ms)

    def suspend(self, instance: str) -> None:
        live = self.owner.instances.find(f"order/{instance}")
        if live is not None:
            self.ask(instance, Suspend(live.run.sequence - 1))

    def started(self, instance: str, key: str) -> None:
        live = self.owner.instances.find(f"order/{instance}")
        if live is not None and live.activation is not None:
            message = AttemptStarted(live.activation, reached(key), 1, POLICY)
            self.owner.handle([message], self.now_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.owner.wake(self.now_ms)

    def state(self) -> tuple[Any, ...]:
        """All that an owner decides by, and what it lets go."""
        owner, batch = self.owner, self.owner.take_batch()
        lives = [
            (
                live.key,
                self.engine.encode(live.run),
                (live.activation, live.attempts, live.ready, live.resting, live.held),
                (live.batch, live.since_ms, live.bytes_most, live.tail, live.tail_bytes),
            )
            for live in owner.instances.all_in_memory()
        ]
        incidents = [(incident.kind, incident.what) for incident in owner.take_incidents()]
        changed = sorted(owner.instances.changed)
        owner.instances.changed.clear()
        due = owner.next_due_ms()
        return lives, (batch.number, batch.records, batch.effects), incidents, changed, due


def reached(key: str) -> Reached:
    return Reached(key, key, KEYS.index(key), 5, 2, 600)


Action: TypeAlias = Callable[[Subject], None]

instances, keys = st.sampled_from(INSTANCES), st.sampled_from(KEYS)
attempts = st.sampled_from([1, 1, 1, 2])
results = st.sampled_from(["null", '"é"', f'"{"x" * 999}"'])
posts = st.sampled_from([(), (), (), (Post(0, topic="t", key="k", value="1"),)])
commands: st.SearchStrategy[Command] = st.sampled_from(
    [RestartRun(), RetryRun(), PauseRun(), ResumeRun(), CancelRun(), SendEvent("e", "paid", "1")]
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(lambda key: StepUnderWay(reached(key), 1), keys),
    st.builds(
        lambda key, attempt, retryable: StepRaised(
            reached(key), attempt, FAILURE, POLICY, retryable
        ),
        *(keys, attempts, st.booleans()),
    ),
    st.builds(
        lambda n: Open(f"sleep-{n}", "sleep", EntryKind.SLEEP, 9 + n, wait_ms=50), st.integers(0, 3)
    ),
    st.sampled_from([BeginRollback(FAILURE), HostFailed("it ended"), Raise(FAILURE)]),
)


def returned(*of: Any) -> Action:  # noqa: ANN401
    instance, key, attempt, result, rollback, sent = of
    request = StepReturned(reached(key), attempt, POLICY, result, rollback, sent)
    return lambda subject: subject.ask(instance, request)


RETURNED = st.builds(returned, instances, keys, attempts, results, st.booleans(), posts)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    *[RETURNED] * 8,
    st.builds(lambda i, request: lambda subject: subject.ask(i, request), instances, requests),
    st.builds(lambda i, key: lambda subject: subject.started(i, key), instances, keys),
    st.builds(lambda i: lambda subject: subject.suspend(i), instances),
    st.builds(lambda i, command: lambda subject: subject.command(i, command), instances, commands),
    st.builds(lambda ms: lambda subject: subject.advance(ms), st.sampled_from([0, 1, 60, 2_000])),
    st.just(lambda subject: subject.owner.host_lost("it ended", subject.now_ms)),
)


@given(steps=st.lists(st.tuples(ACTIONS, st.booleans(), st.booleans()), max_size=40))
@settings(deadline=None, max_examples=400)
def test_both_ways_decide_apply_and_stage_alike(steps: list[tuple[Action, bool, bool]]):
    short, general = Subject(short=True), Subject(short=False)
    for subject in (short, general):
        for instance in INSTANCES:
            subject.command(instance, StartRun("1"))
        subject.owner.dispatch(subject.now_ms)
    for action, waits, lasts in steps:
        for subject in (short, general):
            action(subject)
            if not waits:
                subject.owner.dispatch(subject.now_ms)
        # Otherwise the next decisions join this batch.
        if not lasts:
            assert short.state() == general.state()
    assert short.state() == general.state()


LARGE = f'"{"x" * 999}"'


@pytest.mark.parametrize(
    "of",
    [
        [StepReturned(reached(key), 1, POLICY, "null") for key in KEYS],
        [StepReturned(reached(key), 1, POLICY, LARGE) for key in KEYS[:ENTRIES_MAX]],
        [
            StepReturned(reached("step-0"), 1, POLICY, "null"),
            HostFailed("it ended"),
            StepReturned(reached("step-1"), 1, POLICY, "null"),
        ],
    ],
    ids=["too many entries", "too large", "a host that ended"],
)
def test_both_ways_keep_the_limits(of: list[Request]):
    short, general = Subject(short=True), Subject(short=False)
    for subject in (short, general):
        subject.command("a", StartRun("1"))
        subject.owner.dispatch(subject.now_ms)
        for request in of:
            subject.ask("a", request)
    assert short.state() == general.state()


def test_the_short_way_is_taken(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    commit = Committer.commit_short_step

    def counted(self: Committer, live: Any, *rest: Any) -> None:  # noqa: ANN401
        taken.append(live.key)
        commit(self, live, *rest)

    monkeypatch.setattr(Committer, "commit_short_step", counted)
    subject = Subject(short=True)
    subject.command("a", StartRun("1"))
    subject.owner.dispatch(subject.now_ms)
    for key in KEYS[:3]:
        subject.ask("a", StepReturned(reached(key), 1, POLICY, "null"))
    # The first is measured in general, because nothing was measured before.
    assert taken == ["order/a"] * 2
