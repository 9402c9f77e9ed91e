"""Decide the commands of one owner. Every command gets an outcome, even if an error occurs."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.json_schemas import SchemaInvalid
from headwater.processors.runs.decide import move, names_refusal, not_found
from headwater.processors.runs.decisions import Decision, Facts, Rejection
from headwater.processors.runs.engine import Engine, Engines, engine_of
from headwater.processors.runs.limits import (
    DECISION_BYTES_MAX,
    RUN_BYTES_MAX,
    VALUE_BYTES_TOP,
    bounded,
    value_problem,
)
from headwater.processors.runs.params import params_problem
from headwater.processors.runs.sizes import bytes_max, fitting, replacement
from headwater.processors.runs.slot_keys import slot_scope
from headwater.processors.runs.slots import SLOTS, with_slot_request
from headwater.processors.runs.state import Run
from headwater.schemas.failures import INTERNAL, INVALID_PARAMS, MAILBOX_FULL, RUN_TOO_LARGE
from headwater.schemas.history import (
    Artifact,
    AskSlot,
    Command,
    CommandRejected,
    CommandSent,
    DeleteInstance,
    EventReceived,
    Failure,
    FanInActivated,
    FinishChild,
    GrantSlot,
    InstanceDeleted,
    Json,
    LogWritten,
    MoveRun,
    PostsQueued,
    RestartRun,
    RetryRun,
    RunCommand,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunStarted,
    RunTerminated,
    SendEvent,
    StartRun,
    TokensCreated,
    creates,
    instance_key,
)
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.code import Code, RunSource
from headwater.streams.engine.committing import Committer, Containment, Ending, failure_of
from headwater.streams.engine.effects import Staging, StagingMark, not_deleted, refusal_notice
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances

#: A run that ends or restarts grows only by data with its own limits.
_ENDS: Final = (RunCompleted, RunErrored, RunTerminated)
#: Size of a token in a state, in addition to the event that creates it.
_TOKEN_BYTES: Final = 256


class RunSizeLimit:
    """The size limit of the runs of one owner.

    The state of a run is in memory, in snapshots, and is sent to its host at every activation. All
    of it counts towards the limit: results, errors, events in the mailbox, and posts to be sent.
    Decisions are checked before they are applied, because the log must be able to store them. A
    state is measured exactly only when an estimate comes near the limit.
    """

    def __init__(self, run_bytes_max: int = RUN_BYTES_MAX) -> None:
        self._most = run_bytes_max

    def enforce(
        self, live: LiveInstance | None, engine: Engine[Any], decision: Decision, now_ms: int
    ) -> Decision:
        """Return the decision, or one in place of a decision that is too large."""
        run = live.run if live else None
        if isinstance(decision, Rejection):
            return fitting(engine, run, decision)
        sizes = [bytes_max((event,)) for event in decision]
        if sum(sizes) > DECISION_BYTES_MAX:
            decision = replacement(engine, run, decision)
            if isinstance(decision, Rejection):
                return decision
            sizes = [bytes_max((event,)) for event in decision]
        # Instances that count slots have their own limit.
        if live is None or live.run.kind == SLOTS or live.run.ended:
            return decision
        return self._within(live, engine, decision, sizes, now_ms)

    def admits(self, live: LiveInstance, event: RunEvent) -> bool:
        """Count an event of an open run, unless `enforce` has to decide about it."""
        size = bytes_max((event,))
        if live.bytes_most is None or size > DECISION_BYTES_MAX:
            return False
        size += live.bytes_most
        if size > self._most // 2:
            return False
        live.bytes_most = size
        return True

    def _within(
        self,
        live: LiveInstance,
        engine: Engine[Any],
        decision: list[RunEvent],
        sizes: list[int],
        now_ms: int,
    ) -> Decision:
        """Keep track of the size of a run, and limit it."""
        if isinstance(decision[0], RunStarted) or isinstance(decision[-1], _ENDS):
            live.bytes_most = None
            return decision
        before = live.bytes_most
        if before is not None:
            live.bytes_most = before + _growth(decision, sizes, before)
            if live.bytes_most <= self._most // 2:
                return decision
        measured = self._measured(live, engine, decision, now_ms)
        if isinstance(measured, Rejection):
            live.bytes_most = before
        return measured

    def _measured(
        self, live: LiveInstance, engine: Engine[Any], decision: list[RunEvent], now_ms: int
    ) -> Decision:
        run = live.run
        received = any(isinstance(event, EventReceived) for event in decision)
        waiting = _waiting(run, decision) if received else 0
        if waiting > self._most // 2:
            return Rejection(MAILBOX_FULL, self._mailbox_message(run, waiting))
        if live.bytes_most is not None and live.bytes_most <= self._most:
            return decision
        live.bytes_most = _size_after(engine, run, decision, now_ms)
        if live.bytes_most <= self._most:
            return decision
        size = live.bytes_most
        if received:
            return Rejection(MAILBOX_FULL, self._message(run, size))
        return fitting(
            engine, run, engine.fail_run(run, Failure(RUN_TOO_LARGE, self._message(run, size)))
        )

    def _message(self, run: Run, size: int) -> str:
        return (
            f"expected the state of a run to have at most {self._most} bytes, found that "
            f"{run.workflow}/{run.instance_id} would have {size}: its results, its errors and the "
            "events in its mailbox; store large data elsewhere and keep a reference to it, trim "
            "old iterations by step.loop, or use child workflows"
        )

    def _mailbox_message(self, run: Run, waiting: int) -> str:
        return (
            f"expected at most {self._most // 2} bytes of events that were not consumed, found "
            f"{waiting}; does {run.workflow} ever wait for them?"
        )


def _growth(events: list[RunEvent], sizes: list[int], before: int) -> int:
    """Return an upper bound of how much events enlarge a state, in bytes.

    Args:
        events: The events.
        sizes: Upper bounds of their own sizes.
        before: Upper bound of the size of the state.
    """
    size = 0
    for event, event_size in zip(events, sizes, strict=True):
        match event:
            case LogWritten():
                continue  # Log lines are not part of the state.
            case FanInActivated():
                # Each merge sets a value composed of the outputs of branches.
                size += before * len(event.merges)
            case TokensCreated():
                size += event.count * (_TOKEN_BYTES + 4 * len(event.path))
            case _:
                pass
        size += event_size
    return size


def _size_after(engine: Engine[Any], run: Run, events: list[RunEvent], now_ms: int) -> int:
    """Return the size of the state after some events, in bytes."""
    after = engine.decode(engine.encode(run))
    for event in events:
        engine.apply(after, event, now_ms)
    return len(engine.encode(after))


def _waiting(run: Run, events: list[RunEvent]) -> int:
    """Return the size of the events in a mailbox, including new ones, in bytes."""
    new_payloads = [event.payload for event in events if isinstance(event, EventReceived)]
    payloads = [*(received.payload for received in run.mailbox), *new_payloads]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in payloads)


# -- engine and facts of a command


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
        if isinstance(command, MoveRun):
            return self._decide_move(live, sent, command, now_ms)
        return self._decide_by_engine(live, sent, command, now_ms)

    def _decide_by_engine(
        self, live: LiveInstance | None, sent: CommandSent, command: RunCommand, now_ms: int
    ) -> Decision:
        run = live.run if live else None
        begins = isinstance(command, StartRun) or (live is None and creates(command))
        source: RunSource | None = None
        if begins or (run is not None and isinstance(command, RestartRun | RetryRun)):
            result = self._code.for_new_run(sent.workflow, sent.instance_id, command, run)
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

    def _decide_move(
        self, live: LiveInstance | None, sent: CommandSent, command: MoveRun, now_ms: int
    ) -> Decision:
        if live is None:
            return not_found(sent.instance_id)
        source = self._code.chosen_source(live.run, command.deployment, keeps=True)
        if isinstance(source, Rejection):
            return source
        decision = move(live.run, source.deployment)
        return self._size_limit.enforce(live, live.engine, decision, now_ms)


def _facts(sent: CommandSent, now_ms: int, seed: str = "", document: Json | None = None) -> Facts:
    instance = (sent.workflow, sent.instance_id)
    return Facts(*instance, sent.sent_at_ms, now_ms, seed, document, sent.trace)


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
        others = [_with_deployment(event, source.deployment) for event in decision[1:]]
        decision = [started, *others]
    if concurrency is None and (run is None or run.slot is None):
        return decision
    slot = None
    if concurrency is not None:
        slot = slot_scope(concurrency, started.params, evaluations)
    if isinstance(slot, Rejection):
        return slot
    return with_slot_request(run, (sent.workflow, sent.instance_id), decision, slot)


def _with_deployment(event: RunEvent, deployment: Artifact | None) -> RunEvent:
    """Start the children of a run on its deployment, if they start with it."""
    if not isinstance(event, PostsQueued):
        return event
    posts = tuple(
        msgspec.structs.replace(
            post, command=msgspec.structs.replace(post.command, deployment=deployment)
        )
        if isinstance(post.command, StartRun) and post.command.parent is not None
        else post
        for post in event.posts
    )
    return PostsQueued(posts)


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


# -- outcomes


class Commands:
    """Has the commands of one owner decided, and stages their outcomes."""

    def __init__(  # noqa: PLR0913, PLR0917, the parts that a command may change
        self,
        partition: int,
        decider: CommandDecider,
        committer: Committer,
        containment: Containment,
        instances: LiveInstances,
        staging: Staging,
        activations: Activations,
    ) -> None:
        self._partition = partition
        self._decider = decider
        self._committer = committer
        self._containment = containment
        self._instances = instances
        self._staging = staging
        self._activations = activations

    def receive(
        self, offset: int, sent: CommandSent, now_ms: int
    ) -> tuple[LiveInstance, Ending] | None:
        """Decide a command.

        Returns:
            An instance that would otherwise wait forever for this command, and how its run is to
            end; None if there is none.
        """
        key = instance_key(sent.workflow, sent.instance_id)
        mark = self._containment.begin()
        try:
            self._receive(offset, sent, key, now_ms)
        except Exception as error:  # noqa: BLE001, one command costs no partition
            return self._failed(error, mark, offset, sent, key, now_ms)
        return None

    def _receive(self, offset: int, sent: CommandSent, key: str, now_ms: int) -> None:
        live = self._instances.find(key)
        if live is None and key in self._instances.quarantined:
            self._receive_quarantined(offset, sent, key, now_ms)
            return
        if isinstance(sent.command, DeleteInstance):
            self._delete(offset, sent, sent.command.unchanged_since_ms, live, now_ms)
            return
        decision = self._decider.decide(live, sent, now_ms)
        if isinstance(decision, Rejection):
            self._reject(offset, sent, decision, live.run if live else None, now_ms)
            return
        live = self._committer.commit(
            live, sent.workflow, sent.instance_id, decision, offset, now_ms
        )
        self._staging.answer(self._partition, offset, sent, None, live.run)

    def _reject(
        self, offset: int, sent: CommandSent, rejection: Rejection, run: Run | None, now_ms: int
    ) -> None:
        rejection = Rejection(rejection.code, bounded(rejection.message))
        self._staging.note(offset, run, now_ms, CommandRejected(rejection.code, rejection.message))
        self._staging.answer(self._partition, offset, sent, rejection, run)
        if (notice := refusal_notice(sent, rejection, run, now_ms)) is not None:
            self._staging.effect(notice)

    def _failed(
        self,
        error: Exception,
        mark: StagingMark,
        offset: int,
        sent: CommandSent,
        key: str,
        now_ms: int,
    ) -> tuple[LiveInstance, Ending] | None:
        """Reject a command that cannot be decided."""
        what = f"{type(sent.command).__name__} for {key}"
        self._containment.contain(error, mark, "command", what)
        live = self._instances.in_memory(key)
        run = None if live is None or live.damaged else live.run
        failure = failure_of(what, error)
        rejection = Rejection(failure.name, failure.message)
        mark = self._containment.begin()
        try:
            self._reject(offset, sent, rejection, run, now_ms)
        except Exception as second:  # noqa: BLE001, see above
            self._containment.contain(second, mark, "notice", what)
            event = CommandRejected(rejection.code, rejection.message)
            self._staging.note(offset, None, now_ms, event)
            self._staging.answer(self._partition, offset, sent, rejection, None)
        if live is not None and isinstance(sent.command, FinishChild | GrantSlot):
            return live, Ending(failure, 0)
        return None

    def _receive_quarantined(self, offset: int, sent: CommandSent, key: str, now_ms: int) -> None:
        """Decide a command for a quarantined instance: it can only be deleted."""
        command = sent.command
        if isinstance(command, DeleteInstance) and command.unchanged_since_ms is None:
            names = (sent.workflow, sent.instance_id)
            self._staging.note(offset, None, now_ms, InstanceDeleted(), names)
            self._staging.answer(self._partition, offset, sent, None, None)
            self._instances.delete(key)
            return
        reason = self._instances.quarantined[key]
        message = f"{key} is quarantined, delete it or start another release: {reason}"
        self._reject(offset, sent, Rejection(INTERNAL, bounded(message)), None, now_ms)

    def _delete(
        self,
        offset: int,
        sent: CommandSent,
        since_ms: int | None,
        live: LiveInstance | None,
        now_ms: int,
    ) -> None:
        """Delete an instance, if everything that it had to send has been delivered.

        With `since_ms`, only if it has not changed since.
        """
        if live is not None and not live.may_be_deleted(since_ms):
            self._reject(offset, sent, not_deleted(live.run, since_ms), live.run, now_ms)
            return
        self._staging.note(offset, live.run if live else None, now_ms, InstanceDeleted())
        self._staging.answer(self._partition, offset, sent, None, None)
        if live is not None:
            self._activations.release(live)
            self._instances.delete(live.key)
