"""Which engine decides a command, and with what."""

from collections.abc import Callable

import msgspec

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.json_schemas import SchemaInvalid
from headwater.processors.runs.command_names import names_refusal
from headwater.processors.runs.decide import not_found
from headwater.processors.runs.decisions import Decision, Facts, Rejection
from headwater.processors.runs.engine import Engines, engine_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP, bounded, value_problem
from headwater.processors.runs.params import params_problem
from headwater.processors.runs.slot_keys import slot_scope
from headwater.processors.runs.slots import SLOTS, with_slot_request
from headwater.processors.runs.state import Run
from headwater.schemas.failures import INVALID_PARAMS
from headwater.schemas.history import (
    AskSlot,
    Command,
    CommandSent,
    DeleteInstance,
    Json,
    RestartRun,
    RetryRun,
    RunEvent,
    RunStarted,
    SendEvent,
    StartRun,
    creates,
)
from headwater.streams.engine.code import Code, Made
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.room import Room


class CommandDecider:
    """Decides commands for one owner; code says what may be started."""

    def __init__(
        self,
        engines: Engines,
        code: Code,
        draw_seed: Callable[[], str],
        room: Room,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._engines = engines
        self._code = code
        self._draw_seed = draw_seed
        self._room = room
        self._evaluator = evaluator

    def decide(self, live: LiveInstance | None, sent: CommandSent, now_ms: int) -> Decision:
        """Decides a command; an instance that exists keeps its engine."""
        command = sent.command
        assert not isinstance(command, DeleteInstance)  # noqa: S101, no engine decides it
        run = live.run if live else None
        refusal = names_refusal(command)
        if refusal is not None:
            return refusal
        if isinstance(command, AskSlot):
            # It has arrived: whether the workflow is known here or not, it is counted.
            facts = _facts(sent, now_ms)
            return engine_of(self._engines, SLOTS).decide_command(run, command, facts)
        begins = isinstance(command, StartRun) or (live is None and creates(command))
        made: Made | None = None
        if begins or (run is not None and isinstance(command, RestartRun | RetryRun)):
            found = self._code.for_new_run(sent.workflow, command, run)
            if isinstance(found, Rejection):
                return found
            made = found
        evaluations = Evaluations(self._evaluator)
        unfit = _unfit(sent.workflow, command, run, made, evaluations) if made else None
        if unfit is not None:
            return unfit
        if live is not None:
            engine = live.engine
        elif made is not None:
            engine = engine_of(self._engines, made.kind)
        else:
            return not_found(sent.instance_id)
        seed = self._draw_seed() if begins or isinstance(command, RestartRun) else ""
        document = made.document if made else None
        decision = engine.decide_command(run, command, _facts(sent, now_ms, seed, document))
        if made is not None and not isinstance(decision, Rejection):
            decision = _begun(run, sent, decision, made, evaluations)
        # Before anything is applied: the log must be able to follow.
        return self._room.fitting(live, engine, decision, now_ms)


def _facts(sent: CommandSent, now_ms: int, seed: str = "", document: Json | None = None) -> Facts:
    return Facts(sent.workflow, sent.instance_id, sent.sent_at_ms, now_ms, seed, document)


def _begun(
    run: Run | None,
    sent: CommandSent,
    decision: list[RunEvent],
    made: Made,
    evaluations: Evaluations,
) -> Decision:
    """What begins a run, with what that is made from; of a workflow with a limit, it asks first."""
    started = decision[0]
    if not isinstance(started, RunStarted):
        return decision
    concurrency = made.concurrency
    if started.kind != made.kind:
        concurrency = None  # It began when a graph had this name, and graphs have no limits.
    elif started.deployment != made.deployment:
        started = msgspec.structs.replace(started, deployment=made.deployment)
        decision = [started, *decision[1:]]
    if concurrency is None and (run is None or run.slot is None):
        return decision
    place = None
    if concurrency is not None:
        place = slot_scope(concurrency, started.params, evaluations)
    if isinstance(place, Rejection):
        return place
    return with_slot_request(run, (sent.workflow, sent.instance_id), decision, place)


def _unfit(
    workflow: str, command: Command, run: Run | None, made: Made, evaluations: Evaluations
) -> Rejection | None:
    """Return the refusal of params that the workflow does not take.

    A run that begins again has the params of its instance, which may not fit the code of today.
    """
    if run is not None:
        params = run.params if isinstance(command, RestartRun | RetryRun) else None
    elif isinstance(command, SendEvent):
        params = command.start
    else:
        params = command.params if isinstance(command, StartRun) else None
    schema = made.params
    if schema is None or params is None or value_problem("params", params, VALUE_BYTES_TOP):
        return None
    try:
        fault = params_problem(schema, params, evaluations)
    except SchemaInvalid as error:
        # A release with other limits has taken it.
        fault = f"that they cannot be checked: {error}"
    if fault is None:
        return None
    message = f"expected the params that {workflow} takes, found {fault}"
    return Rejection(INVALID_PARAMS, bounded(message))
