"""The built-in app: the workflow that runs the schedules of apps.

Every worker serves it in a separate host, in addition to its configured apps. Authors do not need
to include it, and their code cannot bring it down.

A schedule is an instance of the workflow RUNNER; its id is the schedule's name. The instance sleeps
until the next tick and starts the workflows that are due. Ticks therefore start exactly once,
whichever worker owns the instance, and missed ticks are known after any downtime. The id of a
started instance contains its tick, so a tick cannot start two.

The declaration of a schedule is in the state of its instance, not in the code. It is passed when
the instance is created, and every worker that starts sends it again as an event. A tick belongs to
the declaration that was known when it was due. The code only knows whether an app of its worker
still has the schedule. If none has, nothing is started, and after an hour the instance ends.

The active deployment declares its schedules in the same way, and takes precedence over an app with
a schedule of the same name. An event states which activation it belongs to, so that a worker that
lags changes nothing, and when that was activated, so that a tick belongs to the deployment that was
active when it was due. If the active deployment has no such schedule, the instance waits for one
that has: it must remember the latest activation.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from headwater.processors.code.errors import NonRetryableError
from headwater.processors.cron import CATCH_UP_MAX, due_ticks, next_tick
from headwater.schemas.history import Artifact, StartRun
from headwater.schemas.statuses import EntryKind
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import decode
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import (
    Declared,
    FromDeployment,
    declaration_problem,
    params_at,
)
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: Name of the workflow of schedules: one instance per schedule of an app.
RUNNER: Final = "headwater-schedule"
#: Type of the event by which a worker declares a schedule.
DECLARED: Final = "declared"

_ID_TIME: Final = "%Y%m%dT%H%M%SZ"
#: A sleep may last 365 days, but the next 29th of February may be further away.
_NAP_MS: Final = 300 * 86_400_000
#: Number of checks, and time between them, while no app has the schedule: during a release, workers
#: of the old and the new one own the instance in turn.
_ABSENCES_MAX: Final = 60
_ABSENCE_MS: Final = 60_000
#: Iterations with entries that are kept in the history.
_KEPT: Final = 10
_EVENTS_MAX: Final = 100
_WAITS: Final = "nothing is started until a worker reports what {} declares"
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="1 minute", backoff="constant")


class ScheduleRunner(Workflow):
    """The workflow RUNNER, for schedules with these names."""

    def __init__(self, schedules: Iterable[str]) -> None:
        super().__init__(RUNNER, _Runner(frozenset(schedules)).run, strict=False)


class _State(msgspec.Struct, frozen=True):
    """State of a schedule.

    Attributes:
        declared: Latest declaration of an app.
        after_ms: All ticks up to this time have been handled. Unix milliseconds.
        until_ms: End of its sleep. Unix milliseconds.
        absences: Number of consecutive checks in which no app had the schedule.
        deployed: Latest declaration of the active deployment.
        outdated: Whether the schedule was restarted and no worker has sent the declaration of an
            app since.
    """

    declared: Declared | None
    after_ms: int
    until_ms: int
    absences: int = 0
    deployed: FromDeployment | None = None
    outdated: bool = False


class _Segment(NamedTuple):
    """A period in which one declaration was in effect: after `after_ms`, until `until_ms` included.

    Attributes:
        on: Deployment that declared it; None for an app.
    """

    declared: Declared
    on: Artifact | None
    after_ms: int
    until_ms: int


class _Runner:
    """Code of the workflow.

    Everything that depends on the clock, the time zone database or the app is done in steps.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    async def run(self, event: WorkflowEvent[Any], step: Step) -> Any:  # noqa: ANN401
        """Start what is due until the schedule is removed."""

        async def begin() -> dict[str, Any]:
            begun = _begin(event.payload, event.timestamp, event.run_number)
            await _log_source(step, begun.deployed)
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
        # Owners' clocks differ: on a slow one, the tick is still in the future.
        known_ms = state.after_ms if events else state.until_ms
        now_ms = max(_unix_ms(await step.now()), known_ms)

        async def start(tx: StepTx) -> dict[str, Any] | None:
            return await self._start(tx, step, state, events, now_ms)

        next_state = await step.do("start", start, retries=_UNTIL_IT_WORKS)
        return Break("no longer declared") if next_state is None else Continue(next_state)

    async def _start(
        self, tx: StepTx, step: Step, state: _State, events: list[Any], now_ms: int
    ) -> dict[str, Any] | None:
        """Start what is due. Return the next state, or None if the schedule was removed."""
        latest, segments = state, list[_Segment]()
        for declaration in await _declarations(step, state, events):
            latest, segment = self._apply(latest, declaration, now_ms)
            segments += segment
        effective = self._effective(latest)
        if effective is not None:
            segments.append(_Segment(*effective, latest.after_ms, now_ms))
        starts, missed = _due(segments, now_ms)
        for declared, on, tick_ms in starts:
            _create(tx, declared, on, tick_ms)
        if missed:
            lost = {"after": _rfc3339(state.after_ms), "until": _rfc3339(now_ms)}
            policy = {"catch_up": segments[-1].declared.catch_up, "started": len(starts)}
            await _warn(step, "ticks were missed and are not started", {**lost, **policy})
        if latest.deployed is not state.deployed:
            await _log_source(step, latest.deployed)
        if effective is not None:
            until_ms = _until(effective[0], now_ms)
            return _plain(_changed_to(latest, after_ms=now_ms, until_ms=until_ms, absences=0))
        return await _absent(step, latest, now_ms)

    def _effective(self, state: _State) -> tuple[Declared, Artifact | None] | None:
        """Return the declaration in effect and its deployment, or None if there is none."""
        deployed, declared = state.deployed, state.declared
        if deployed is not None and deployed.declared is not None:
            return deployed.declared, deployed.deployment
        if declared is not None and declared.schedule in self._names and not state.outdated:
            return declared, None
        return None

    def _apply(
        self, state: _State, declaration: Declared | FromDeployment, now_ms: int
    ) -> tuple[_State, list[_Segment]]:
        """Apply a declaration. Return the new state, and the period of the one it replaces."""
        known, effective = state.deployed, self._effective(state)
        if isinstance(declaration, Declared):
            if declaration.again and state.declared is not None and not state.outdated:
                return state, []
            changed = _changed_to(state, declared=declaration, outdated=False)
            if known is not None and known.declared is not None:
                return changed, []  # The deployment's declaration stays in effect.
            # An app's declaration takes effect now, unless the app was absent only briefly.
            was_away = effective is None and state.declared is not None
            back_soon = was_away and state.absences < _ABSENCES_MAX
            at_ms = state.after_ms if back_soon else now_ms
        elif known is not None and declaration.move <= known.move:
            return state, []
        else:
            changed = _changed_to(state, deployed=declaration)
            at_ms = min(declaration.since_ms, now_ms)
            # The first declaration of a deployment may arrive late: no earlier one started ticks.
            if known is not None or effective is not None or declaration.again:
                at_ms = max(at_ms, state.after_ms)
        segments = [] if effective is None else [_Segment(*effective, state.after_ms, at_ms)]
        return _changed_to(changed, after_ms=at_ms), segments


def _due(
    segments: list[_Segment], now_ms: int
) -> tuple[list[tuple[Declared, Artifact | None, int]], bool]:
    """Return what is to be started, earliest first, and whether ticks were missed."""
    starts: list[tuple[Declared, Artifact | None, int]] = []
    missed = False
    for declared, on, after_ms, until_ms in segments:
        ticks = due_ticks(
            declared.at,
            after_ms,
            until_ms,
            catch_up=declared.catch_up,
            grace_ms=declared.grace_ms,
        )
        starts += ((declared, on, tick) for tick in ticks.starts)
        missed = missed or ticks.missed
    return starts[-CATCH_UP_MAX:], missed or len(starts) > CATCH_UP_MAX


async def _wait(step: Step, until_ms: int) -> list[Any]:
    """Return the payloads of the events that arrive before a time, as one entry.

    A race between a sleep and a wait would lose the events of a wait that ends with the sleep. A
    wait with a timeout would end later if the process crashed before it was recorded.
    """
    key, entry = step.enter(step.run.ticket(), "wait", EntryKind.WAIT)
    try:
        if entry is None:
            options = {"event_types": (DECLARED,), "limit": _EVENTS_MAX}
            step.open(key, "wait", EntryKind.WAIT, wake_at_ms=until_ms, **options)
        entry = await step.result(key)
    finally:
        step.leave(key)
    return [event["payload"] for event in decode(entry.result or "null")]


def _begin(payload: Any, started_at: datetime, run_number: int) -> _State:  # noqa: ANN401
    declaration = _read(payload)
    if isinstance(declaration, str):
        raise NonRetryableError(f"expected the params of schedule(...): {declaration}")
    after_ms = _unix_ms(started_at)
    if isinstance(declaration, Declared):
        return _State(declaration, after_ms, _until(declaration, after_ms), outdated=run_number > 0)
    if run_number:
        # Another deployment may be active now: wait until a worker reports which one.
        declaration = msgspec.structs.replace(declaration, declared=None, move=0)
        return _State(None, after_ms, after_ms + _NAP_MS, deployed=declaration)
    # Ticks since the activation are due at once, unless the instance was deleted: it handled them.
    since_ms = after_ms if declaration.again else min(after_ms, declaration.since_ms)
    return _State(None, since_ms, after_ms, deployed=declaration)


def _read(payload: Any) -> Declared | FromDeployment | str:  # noqa: ANN401
    """Parse a declaration, or return what is wrong with it."""
    try:
        if isinstance(payload, dict) and "move" in payload:
            of_deployment = msgspec.convert(payload, FromDeployment)
            declared = of_deployment.declared
            return (declared and declaration_problem(declared)) or of_deployment
        of_app = msgspec.convert(payload, Declared)
        return declaration_problem(of_app) or of_app
    except msgspec.ValidationError as error:
        return str(error)


async def _absent(step: Step, state: _State, now_ms: int) -> dict[str, Any] | None:
    """Schedule another check. Ticks are handled when the schedule is available again."""
    deployed = state.deployed is not None
    if state.declared is None or state.absences >= _ABSENCES_MAX:
        return _plain(_changed_to(state, until_ms=now_ms + _NAP_MS)) if deployed else None
    if not state.absences and not state.outdated:
        await _warn(step, "no app has such a schedule; nothing is started")
    return _plain(_changed_to(state, until_ms=now_ms + _ABSENCE_MS, absences=state.absences + 1))


async def _declarations(
    step: Step, state: _State, events: list[Any]
) -> list[Declared | FromDeployment]:
    """Return the declarations of this schedule in order. Every worker of an app repeats its own."""
    known = state.declared or state.deployed
    assert known is not None  # noqa: S101, the first declaration is one of them
    declarations = list[Declared | FromDeployment]()
    for payload in events:
        declaration = _read(payload)
        if not isinstance(declaration, str) and declaration.schedule == known.schedule:
            declarations.append(declaration)
            continue
        problem = (
            declaration if isinstance(declaration, str) else f"it is of {declaration.schedule!r}"
        )
        await _warn(step, "a declaration of this schedule was ignored", {"fault": problem})
    return declarations


async def _log_source(step: Step, deployed: FromDeployment | None) -> None:
    if deployed is None:
        return
    if not deployed.move:
        message = _WAITS.format("the active deployment")
    elif deployed.declared is None:
        message = "the active deployment has no such schedule"
    else:
        message = "the active deployment declares it"
    await step.log.info(message, {"deployment": deployed.deployment.name})


async def _warn(step: Step, message: str, data: dict[str, Any] | None = None) -> None:
    await step.log.warn(message, data)  # noqa: G010, a line of the instance, not of a logger


def _create(tx: StepTx, declared: Declared, on: Artifact | None, tick_ms: int) -> None:
    instance_id = f"{declared.schedule}-{_aware(tick_ms):{_ID_TIME}}"
    params = params_at(declared, _rfc3339(tick_ms))
    tx.create_workflow(declared.workflow, id=instance_id, params=params, labels=declared.labels)
    if on is not None:
        # They belong together, whichever deployment is active when the command arrives.
        post = tx.posts[-1]
        assert isinstance(post.command, StartRun)  # noqa: S101, created above
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


# -- the app

#: Its name in lists of apps.
BUILTIN_APP: Final = "headwater"


def builtin_workflows(schedules: Iterable[str]) -> dict[str, Workflow]:
    """Return the built-in workflows by name.

    Args:
        schedules: Names of the schedules that the worker's apps declare.
    """
    return {workflow.name: workflow for workflow in (ScheduleRunner(schedules),)}
