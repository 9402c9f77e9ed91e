"""The workflow of the house's own that runs the schedules of apps.

A schedule is an instance of the workflow RUNNER, whose id is the schedule's name. It sleeps until
the next tick and starts what is due, so that a tick is started once, whoever owns the instance, and
what was missed is known after any downtime. The instance that a tick starts is named for it: no
tick can start two.

What a schedule declares is in the state of that instance, not in the code: it was declared when the
instance was created, and each worker that starts declares it again, by an event. A tick belongs to
the declaration that was known when it was due. The code only knows whether an app of its worker
still has such a schedule; where it is gone nothing is started, and after an hour the instance ends.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

import msgspec

from headwater.processors.cron import due, next_tick
from headwater.processors.replay.errors import NonRetryableError
from headwater.schemas.statuses import EntryKind
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import decode
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.code_host.schedules import (
    Declared,
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
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="1 minute", backoff="constant")


class ScheduleRunner(Workflow):
    """The workflow RUNNER, where there are schedules of these names."""

    def __init__(self, schedules: Iterable[str]) -> None:
        super().__init__(RUNNER, _Runner(frozenset(schedules)).run, strict=False)


class _State(msgspec.Struct):
    """What a schedule knows: all ticks up to `after_ms` are settled, and it sleeps to `until_ms`.

    Shape:  absences counts in how many looks in a row no app had such a schedule.
    """

    declared: Declared
    after_ms: int
    until_ms: int
    absences: int = 0


class _Runner:
    """The workflow's code.

    Everything that depends on the clock, the time zone database or the app is done in steps.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    async def run(self, event: WorkflowEvent[Any], step: Step) -> Any:  # noqa: ANN401
        """Starts what is due until the schedule is gone."""

        async def begin() -> dict[str, Any]:
            return _begin(event.payload, event.timestamp)

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
        declared = state.declared
        latest = await _latest(step, declared, events)
        if declared.schedule not in self._names:
            return await _absent(step, state, latest, now_ms)
        found = due(
            declared.at,
            state.after_ms,
            now_ms,
            catch_up=declared.catch_up,
            grace_ms=declared.grace_ms,
        )
        for tick_ms in found.starts:
            _create(tx, declared, tick_ms)
        if found.missed:
            missed = {"after": _rfc3339(state.after_ms), "until": _rfc3339(now_ms)}
            policy = {"catch_up": declared.catch_up, "started": len(found.starts)}
            await _warn(step, "ticks were missed and are not started", {**missed, **policy})
        return _plain(_State(latest, now_ms, _until(latest, now_ms)))


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


def _begin(payload: Any, started_at: datetime) -> dict[str, Any]:  # noqa: ANN401
    declared = _read(payload)
    if isinstance(declared, str):
        raise NonRetryableError(
            f"expected the params that a worker gives for schedule(...): {declared}"
        )
    after_ms = _unix_ms(started_at)
    return _plain(_State(declared, after_ms, _until(declared, after_ms)))


def _read(payload: Any) -> Declared | str:  # noqa: ANN401
    """A declaration, or what is wrong with it."""
    try:
        declared = msgspec.convert(payload, Declared)
    except msgspec.ValidationError as error:
        return str(error)
    return declaration_fault(declared) or declared


async def _absent(
    step: Step, state: _State, latest: Declared, now_ms: int
) -> dict[str, Any] | None:
    """Looks again later: the ticks are settled when the schedule is there again."""
    if state.absences >= _ABSENCES_MAX:
        return None
    if not state.absences:
        await _warn(step, "no app has such a schedule; nothing is started")
    return _plain(_State(latest, state.after_ms, now_ms + _ABSENCE_MS, state.absences + 1))


async def _latest(step: Step, declared: Declared, events: list[Any]) -> Declared:
    """The declaration that holds from now on."""
    for payload in reversed(events):
        found = _read(payload)
        if isinstance(found, Declared) and found.schedule == declared.schedule:
            return found
        fault = found if isinstance(found, str) else f"it is of {found.schedule!r}"
        await _warn(step, "a declaration of this schedule was ignored", {"fault": fault})
    return declared


async def _warn(step: Step, message: str, data: dict[str, Any] | None = None) -> None:
    await step.log.warn(message, data)  # noqa: G010, a line of the instance, not of a logger


def _create(tx: StepTx, declared: Declared, tick_ms: int) -> None:
    instance_id = f"{declared.schedule}-{_aware(tick_ms):{_ID_TIME}}"
    params = params_at(declared, _rfc3339(tick_ms))
    tx.create_workflow(declared.workflow, id=instance_id, params=params, labels=declared.labels)


def _until(declared: Declared, after_ms: int) -> int:
    tick_ms = next_tick(declared.at, after_ms)
    nap_ms = after_ms + _NAP_MS
    return nap_ms if tick_ms is None else min(tick_ms, nap_ms)


def _plain(state: _State) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def _aware(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1_000, UTC)


def _rfc3339(ms: int) -> str:
    return f"{_aware(ms):%Y-%m-%dT%H:%M:%SZ}"


def _unix_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)
