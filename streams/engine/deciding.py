"""Which engine decides a command, and with what."""

from collections.abc import Callable, Mapping
from typing import Any

from headwater.processors.runs.decide import not_found
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.engine import Engine, Engines, engine_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP, bounded, value_fault
from headwater.processors.runs.params import params_fault
from headwater.processors.runs.slot_keys import place_of
from headwater.processors.runs.slots import SLOTS, Concurrencies, asking
from headwater.processors.runs.state import Run
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import (
    AskSlot,
    Command,
    CommandSent,
    DeleteInstance,
    Json,
    RestartRun,
    RunStarted,
    SendEvent,
    StartRun,
)
from headwater.streams.engine.effects import unknown_workflow
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.room import Room


class CommandDecider:
    """Decides commands for one owner.

    Shape:  workflows may be started, each with the kind of its runs; params are the JSON Schemas of
            what they are started with, of those that declare it; concurrency their limits of it.
    """

    def __init__(
        self,
        engines: Engines,
        workflows: Mapping[str, str],
        params: Mapping[str, Json],
        concurrency: Concurrencies,
        draw_seed: Callable[[], str],
        room: Room,
    ) -> None:
        self._engines = engines
        self._workflows = workflows
        self._params = params
        self._concurrency = concurrency
        self._draw_seed = draw_seed
        self._room = room

    def decide(self, live: LiveInstance | None, sent: CommandSent, now_ms: int) -> Decision:
        """Decides a command; an instance that exists keeps its engine."""
        command = sent.command
        assert not isinstance(command, DeleteInstance)  # noqa: S101, no engine decides it
        run = live.run if live else None
        if isinstance(command, AskSlot):
            # It has arrived: whether the workflow is known here or not, it is counted.
            return self._decided(engine_of(self._engines, SLOTS), run, sent, "", now_ms)
        creates = _creates(command, live)
        if creates and not self._has(sent.workflow, command):
            return unknown_workflow(sent.workflow, self._workflows)
        unfit = self._unfit(sent.workflow, command) if creates and live is None else None
        if unfit is not None:
            return unfit
        if live is not None:
            engine = live.engine
        elif creates:
            engine = engine_of(self._engines, self._workflows[sent.workflow])
        else:
            return not_found(sent.instance_id)
        seed = self._draw_seed() if creates or isinstance(command, RestartRun) else ""
        decision = self._decided(engine, run, sent, seed, now_ms)
        decision = self._asking(run, sent, decision)
        # Before anything is applied: the log must be able to follow.
        return self._room.fitting(live, engine, decision, now_ms)

    @staticmethod
    def _decided(
        engine: Engine[Any], run: Run | None, sent: CommandSent, seed: str, now_ms: int
    ) -> Decision:
        command = sent.command
        assert not isinstance(command, DeleteInstance)  # noqa: S101, as above
        return engine.decide_command(
            run,
            sent.instance_id,
            command,
            workflow=sent.workflow,
            sent_at_ms=sent.sent_at_ms,
            now_ms=now_ms,
            seed=seed,
        )

    def _asking(self, run: Run | None, sent: CommandSent, decision: Decision) -> Decision:
        """A run that begins, of a workflow with a limit, waits for a slot first."""
        if isinstance(decision, Rejection) or not isinstance(decision[0], RunStarted):
            return decision
        concurrency = self._concurrency.get(sent.workflow)
        if decision[0].kind != self._workflows.get(sent.workflow):
            concurrency = None  # It began when a graph had this name, and graphs have no limits.
        if concurrency is None and (run is None or run.slot is None):
            return decision
        place = None if concurrency is None else place_of(concurrency, decision[0].params)
        if isinstance(place, Rejection):
            return place
        return asking(run, (sent.workflow, sent.instance_id), decision, place)

    def _unfit(self, workflow: str, command: Command) -> Rejection | None:
        """The refusal of params that the workflow does not take."""
        params = command.start if isinstance(command, SendEvent) else None
        params = command.params if isinstance(command, StartRun) else params
        schema = self._params.get(workflow)
        if schema is None or params is None or value_fault("params", params, VALUE_BYTES_TOP):
            return None
        fault = params_fault(schema, params)
        if fault is None:
            return None
        message = f"expected the params that {workflow} takes, found {fault}"
        return Rejection(INVALID_PARAMS, bounded(message))

    def _has(self, workflow: str, command: Command) -> bool:
        """Whether there is such a workflow, of the kind that the command names if it names one."""
        kind = self._workflows.get(workflow)
        wanted = command.kind if isinstance(command, StartRun) else ""
        return kind is not None and wanted in ("", kind)


def _creates(command: Command, live: LiveInstance | None) -> bool:
    """Whether a command creates an instance if it is accepted."""
    if isinstance(command, SendEvent):
        return live is None and command.start is not None
    return isinstance(command, StartRun)
