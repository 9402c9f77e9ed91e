"""Chooses the engine that decides a command, and its input."""

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
from headwater.streams.engine.code import Code, RunSource
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.run_size_limit import RunSizeLimit


class CommandDecider:
    """Decides commands for one owner, which has this code."""

    def __init__(
        self,
        engines: Engines,
        code: Code,
        draw_seed: Callable[[], str],
        size_limit: RunSizeLimit,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._engines = engines
        self._code = code
        self._draw_seed = draw_seed
        self._size_limit = size_limit
        self._evaluator = evaluator

    def decide(self, live: LiveInstance | None, sent: CommandSent, now_ms: int) -> Decision:
        """Decide a command. An existing instance keeps its engine."""
        command = sent.command
        assert not isinstance(command, DeleteInstance)  # noqa: S101, not decided by an engine
        run = live.run if live else None
        refusal = names_refusal(command)
        if refusal is not None:
            return refusal
        if isinstance(command, AskSlot):
            # Slots are counted whether or not the workflow is known here.
            facts = _facts(sent, now_ms)
            return engine_of(self._engines, SLOTS).decide_command(run, command, facts)
        begins = isinstance(command, StartRun) or (live is None and creates(command))
        source: RunSource | None = None
        if begins or (run is not None and isinstance(command, RestartRun | RetryRun)):
            result = self._code.for_new_run(sent.workflow, command, run)
            if isinstance(result, Rejection):
                return result
            source = result
        evaluations = Evaluations(self._evaluator)
        refusal_of_params = (
            _params_refusal(sent.workflow, command, run, source, evaluations) if source else None
        )
        if refusal_of_params is not None:
            return refusal_of_params
        if live is not None:
            engine = live.engine
        elif source is not None:
            engine = engine_of(self._engines, source.kind)
        else:
            return not_found(sent.instance_id)
        seed = self._draw_seed() if begins or isinstance(command, RestartRun) else ""
        document = source.document if source else None
        decision = engine.decide_command(run, command, _facts(sent, now_ms, seed, document))
        if source is not None and not isinstance(decision, Rejection):
            decision = _with_source(run, sent, decision, source, evaluations)
        # Checked before anything is applied, because its record must fit into the log.
        return self._size_limit.enforce(live, engine, decision, now_ms)


def _facts(sent: CommandSent, now_ms: int, seed: str = "", document: Json | None = None) -> Facts:
    return Facts(sent.workflow, sent.instance_id, sent.sent_at_ms, now_ms, seed, document)


def _with_source(
    run: Run | None,
    sent: CommandSent,
    decision: list[RunEvent],
    source: RunSource,
    evaluations: Evaluations,
) -> Decision:
    """Add its source to the start of a run. With a concurrency limit, it requests a slot first."""
    started = decision[0]
    if not isinstance(started, RunStarted):
        return decision
    concurrency = source.concurrency
    if started.kind != source.kind:
        concurrency = None  # The name was a graph's when it started; graphs have no limits.
    elif started.deployment != source.deployment:
        started = msgspec.structs.replace(started, deployment=source.deployment)
        decision = [started, *decision[1:]]
    if concurrency is None and (run is None or run.slot is None):
        return decision
    slot = None
    if concurrency is not None:
        slot = slot_scope(concurrency, started.params, evaluations)
    if isinstance(slot, Rejection):
        return slot
    return with_slot_request(run, (sent.workflow, sent.instance_id), decision, slot)


def _params_refusal(
    workflow: str, command: Command, run: Run | None, source: RunSource, evaluations: Evaluations
) -> Rejection | None:
    """Return the refusal of params that the workflow does not accept, or None.

    A restart or retry uses the params of its instance, which may not fit the current code.
    """
    if run is not None:
        params = run.params if isinstance(command, RestartRun | RetryRun) else None
    elif isinstance(command, SendEvent):
        params = command.start
    else:
        params = command.params if isinstance(command, StartRun) else None
    schema = source.params
    if schema is None or params is None or value_problem("params", params, VALUE_BYTES_TOP):
        return None
    try:
        problem = params_problem(schema, params, evaluations)
    except SchemaInvalid as error:
        # The schema was accepted by a release with other limits.
        problem = f"that they cannot be checked: {error}"
    if problem is None:
        return None
    message = f"expected the params that {workflow} takes, found {problem}"
    return Rejection(INVALID_PARAMS, bounded(message))
