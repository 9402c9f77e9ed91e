"""The workflow of the house's own that runs the schedules of apps.

A schedule is an instance of the workflow RUNNER, whose id is the schedule's name. It sleeps until
the next tick and starts what is due, so that a tick is started once, whoever owns the instance, and
what was missed is known after any downtime. The instance that a tick starts is named for it: no
tick can start two.

What a schedule declares is in the state of that instance, not in the code: it was declared when the
instance was created, and each worker that starts declares it again, by an event. A tick belongs to
the declaration that was known when it was due. The code only knows whether an app of its worker
still has such a schedule; where it is gone nothing is started, and after an hour the instance ends.

The active deployment declares its schedules in the same way, and holds before an app that has one
of the same name. Each event says which activation it follows, so that a worker that is behind
changes nothing; and since when that is active, so that a tick belongs to what was active when it
was due. Where the active one has no such schedule, the instance waits for one that has: it has to
know which activation was the latest.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.cron import CATCH_UP_MAX, due_ticks, next_tick
from headwater.processors.replay.errors import NonRetryableError
from headwater.schemas.history import Artifact, StartRun
from headwater.schemas.statuses import EntryKind
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import decode
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import (
    Declared,
    FromDeployment,
    declaration_fault,
    params_at,
)
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: The workflow whose instances are the schedules of apps.
RUNNER: Final = "headwater-schedule"
#: The type of the event by which a worker declares a schedule.
DECLARED: Final = "declared"

_ID_TIME: Final = "%Y%m%dT%H%M%SZ"
#: A sleep lasts at most 365 days, and the 29th of February may be further away.
_NAP_MS: Final = 300 * 86_400_000
#: How often, and how far apart, a schedule looks for itself where no app has it: while a release
#: replaces another, workers of both run it in turns.
_ABSENCES_MAX: Final = 60
_ABSENCE_MS: Final = 60_000
#: Iterations whose entries stay to be looked at.
_KEPT: Final = 10
_EVENTS_MAX: Final = 100
_WAITS: Final = "it starts nothing before a worker says what {} declares"
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="1 minute", backoff="constant")


class ScheduleRunner(Workflow):
    """The workflow RUNNER, where there are schedules of these names."""

    def __init__(self, schedules: Iterable[str]) -> None:
        super().__init__(RUNNER, _Runner(frozenset(schedules)).run, strict=False)


class _State(msgspec.Struct, frozen=True):
    """What a schedule knows: all ticks up to `after_ms` are settled, and it sleeps to `until_ms`.

    Shape:  declared is what an app has said last, deployed what was said of the active deployment;
            absences counts in how many looks in a row no app had such a schedule; outdated where
            the schedule was restarted, and no worker has said since what an app declares.
    """

    declared: Declared | None
    after_ms: int
    until_ms: int
    absences: int = 0
    deployed: FromDeployment | None = None
    outdated: bool = False


class _Segment(NamedTuple):
    """A time in which one declaration held: after one moment, up to and with another.

    Shape:  on is the deployment that has declared it; None for an app.
    """

    declared: Declared
    on: Artifact | None
    after_ms: int
    until_ms: int


class _Runner:
    """The workflow's code.

    Everything that depends on the clock, the time zone database or the app is done in steps.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    async def run(self, event: WorkflowEvent[Any], step: Step) -> Any:  # noqa: ANN401
        """Starts what is due until the schedule is gone."""

        async def begin() -> dict[str, Any]:
            begun = _begin(event.payload, event.timestamp, event.run_number)
            await _say_whose(step, begun.deployed)
            if begun.outdated:
                await step.log.info(_WAITS.format("an app"))
            return _plain(begun)

        begun = await step.do("begin", begin)
        return await step.loop(
            "ticks",
            self._tick,
            state=begun,
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )

    async def _tick(self, step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
        state = msgspec.convert(plain, _State)
        events = await _wait(step, state.until_ms)
        # Owners' clocks differ: by a slow one, the time has not quite come.
        known_ms = state.after_ms if events else state.until_ms
        now_ms = max(_unix_ms(await step.now()), known_ms)

        async def start(tx: StepTx) -> dict[str, Any] | None:
            return await self._start(tx, step, state, events, now_ms)

        found = await step.do("start", start, retries=_UNTIL_IT_WORKS)
        return Break("no longer declared") if found is None else Continue(found)

    async def _start(
        self, tx: StepTx, step: Step, state: _State, events: list[Any], now_ms: int
    ) -> dict[str, Any] | None:
        """Starts what is due; gives the next state, or None when the schedule is gone."""
        latest, segments = state, list[_Segment]()
        for told in await _told(step, state, events):
            latest, segment = self._changed(latest, told, now_ms)
            segments += segment
        holds = self._holding(latest)
        if holds is not None:
            segments.append(_Segment(*holds, latest.after_ms, now_ms))
        starts, missed = _due(segments, now_ms)
        for declared, on, tick_ms in starts:
            _create(tx, declared, on, tick_ms)
        if missed:
            lost = {"after": _rfc3339(state.after_ms), "until": _rfc3339(now_ms)}
            policy = {"catch_up": segments[-1].declared.catch_up, "started": len(starts)}
            await _warn(step, "ticks were missed and are not started", {**lost, **policy})
        if latest.deployed is not state.deployed:
            await _say_whose(step, latest.deployed)
        if holds is not None:
            until_ms = _until(holds[0], now_ms)
            return _plain(_changed_to(latest, after_ms=now_ms, until_ms=until_ms, absences=0))
        return await _absent(step, latest, now_ms)

    def _holding(self, state: _State) -> tuple[Declared, Artifact | None] | None:
        """The declaration that holds, and the deployment that it is of; None if there is none."""
        deployed, declared = state.deployed, state.declared
        if deployed is not None and deployed.declared is not None:
            return deployed.declared, deployed.deployment
        if declared is not None and declared.schedule in self._names and not state.outdated:
            return declared, None
        return None

    def _changed(
        self, state: _State, told: Declared | FromDeployment, now_ms: int
    ) -> tuple[_State, list[_Segment]]:
        """What is known with a declaration, and the time of the one before it, if one held."""
        known, holds = state.deployed, self._holding(state)
        if isinstance(told, Declared):
            if told.again and state.declared is not None and not state.outdated:
                return state, []
            changed = _changed_to(state, declared=told, outdated=False)
            if known is not None and known.declared is not None:
                return changed, []  # The deployment's goes on.
            # What its app says is from now on, unless the app was only away for a while.
            was_away = holds is None and state.declared is not None
            back_soon = was_away and state.absences < _ABSENCES_MAX
            at_ms = state.after_ms if back_soon else now_ms
        elif known is not None and told.move <= known.move:
            return state, []
        else:
            changed = _changed_to(state, deployed=told)
            at_ms = min(told.since_ms, now_ms)
            # Before a deployment's first word nothing of one was started, however late that is.
            if known is not None or holds is not None or told.again:
                at_ms = max(at_ms, state.after_ms)
        segments = [] if holds is None else [_Segment(*holds, state.after_ms, at_ms)]
        return _changed_to(changed, after_ms=at_ms), segments


def _due(
    segments: list[_Segment], now_ms: int
) -> tuple[list[tuple[Declared, Artifact | None, int]], bool]:
    """What is to be started, the earliest first, and whether there was more."""
    found: list[tuple[Declared, Artifact | None, int]] = []
    missed = False
    for declared, on, after_ms, until_ms in segments:
        ticks = due_ticks(
            declared.at,
            after_ms,
            until_ms,
            catch_up=declared.catch_up,
            grace_ms=declared.grace_ms,
        )
        found += ((declared, on, tick) for tick in ticks.starts)
        missed = missed or ticks.missed
    return found[-CATCH_UP_MAX:], missed or len(found) > CATCH_UP_MAX


async def _wait(step: Step, until_ms: int) -> list[Any]:
    """The payloads of the events that come before a time: one entry, which ends either way.

    A race between a sleep and a wait would lose the events of a wait that ends with the sleep, and
    a wait with a timeout would end later, should a crash come before it is recorded.
    """
    key, entry = step.enter(step.run.ticket(), "wait", EntryKind.WAIT)
    try:
        if entry is None:
            more = {"event_types": (DECLARED,), "limit": _EVENTS_MAX}
            step.open(key, "wait", EntryKind.WAIT, wake_at_ms=until_ms, **more)
        entry = await step.result(key)
    finally:
        step.leave(key)
    return [each["payload"] for each in decode(entry.result or "null")]


def _begin(payload: Any, started_at: datetime, run_number: int) -> _State:  # noqa: ANN401
    told = _read(payload)
    if isinstance(told, str):
        raise NonRetryableError(
            f"expected the params that a worker gives for schedule(...): {told}"
        )
    after_ms = _unix_ms(started_at)
    if isinstance(told, Declared):
        return _State(told, after_ms, _until(told, after_ms), outdated=run_number > 0)
    if run_number:
        # Something else may be active by now: it waits until a worker has said what is.
        told = msgspec.structs.replace(told, declared=None, move=0)
        return _State(None, after_ms, after_ms + _NAP_MS, deployed=told)
    # It looks at once what is due since the activation; one that was deleted has settled that.
    since_ms = after_ms if told.again else min(after_ms, told.since_ms)
    return _State(None, since_ms, after_ms, deployed=told)


def _read(payload: Any) -> Declared | FromDeployment | str:  # noqa: ANN401
    """A declaration, or what is wrong with it."""
    try:
        if isinstance(payload, dict) and "move" in payload:
            of_deployment = msgspec.convert(payload, FromDeployment)
            declared = of_deployment.declared
            return (declared and declaration_fault(declared)) or of_deployment
        of_app = msgspec.convert(payload, Declared)
        return declaration_fault(of_app) or of_app
    except msgspec.ValidationError as error:
        return str(error)


async def _absent(step: Step, state: _State, now_ms: int) -> dict[str, Any] | None:
    """Looks again later: the ticks are settled when the schedule is there again."""
    deployed = state.deployed is not None
    if state.declared is None or state.absences >= _ABSENCES_MAX:
        return _plain(_changed_to(state, until_ms=now_ms + _NAP_MS)) if deployed else None
    if not state.absences and not state.outdated:
        await _warn(step, "no app has such a schedule; nothing is started")
    return _plain(_changed_to(state, until_ms=now_ms + _ABSENCE_MS, absences=state.absences + 1))


async def _told(step: Step, state: _State, events: list[Any]) -> list[Declared | FromDeployment]:
    """What was said of this schedule, in its order; an app's is repeated by each of its workers."""
    known = state.declared or state.deployed
    assert known is not None  # noqa: S101, one of them has begun it
    found = list[Declared | FromDeployment]()
    for payload in events:
        told = _read(payload)
        if not isinstance(told, str) and told.schedule == known.schedule:
            found.append(told)
            continue
        fault = told if isinstance(told, str) else f"it is of {told.schedule!r}"
        await _warn(step, "a declaration of this schedule was ignored", {"fault": fault})
    return found


async def _say_whose(step: Step, deployed: FromDeployment | None) -> None:
    if deployed is None:
        return
    if not deployed.move:
        said = _WAITS.format("the active deployment")
    elif deployed.declared is None:
        said = "the active deployment has no such schedule"
    else:
        said = "the active deployment declares it"
    await step.log.info(said, {"deployment": deployed.deployment.name})


async def _warn(step: Step, message: str, data: dict[str, Any] | None = None) -> None:
    await step.log.warn(message, data)  # noqa: G010, a line of the instance, not of a logger


def _create(tx: StepTx, declared: Declared, on: Artifact | None, tick_ms: int) -> None:
    instance_id = f"{declared.schedule}-{_aware(tick_ms):{_ID_TIME}}"
    params = params_at(declared, _rfc3339(tick_ms))
    tx.create_workflow(declared.workflow, id=instance_id, params=params, labels=declared.labels)
    if on is not None:
        # The two were written for each other, whatever is active when the command arrives.
        post = tx.posts[-1]
        assert isinstance(post.command, StartRun)  # noqa: S101, as it was just made
        command = msgspec.structs.replace(post.command, deployment=on)
        tx.posts[-1] = msgspec.structs.replace(post, command=command)


def _until(declared: Declared, after_ms: int) -> int:
    tick_ms = next_tick(declared.at, after_ms)
    nap_ms = after_ms + _NAP_MS
    return nap_ms if tick_ms is None else min(tick_ms, nap_ms)


def _changed_to(state: _State, **changes: Any) -> _State:  # noqa: ANN401, as replace
    return msgspec.structs.replace(state, **changes)


def _plain(state: _State) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def _aware(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1_000, UTC)


def _rfc3339(ms: int) -> str:
    return f"{_aware(ms):%Y-%m-%dT%H:%M:%SZ}"


def _unix_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)
