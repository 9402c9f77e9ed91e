"""The graph engine: runs workflows that are declared as definitions; tasks do the work."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.graph import appliers
from headwater.processors.graph.branch_outputs import set_branch_output
from headwater.processors.graph.decide import (
    DECIDERS,
    decide_child_finished,
    end_events,
    start_events,
)
from headwater.processors.graph.definition import DefinitionInvalid, to_dict
from headwater.processors.graph.dispatching import idempotency_token
from headwater.processors.graph.draft import Draft, end_children, text_of
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.jobs import decide_job
from headwater.processors.graph.migrating import decide_migration
from headwater.processors.graph.state import (
    KIND,
    GraphRun,
    LiveToken,
    location_of,
)
from headwater.processors.graph.state import decode as decode_state
from headwater.processors.graph.state import encode as encode_state
from headwater.processors.graph.timing import decide_event, policy_of
from headwater.processors.graph.wait_index import drop_index, index_of
from headwater.processors.input_texts import JsonInvalid, read_json, wide_integer_problem
from headwater.processors.runs import decide as runs
from headwater.processors.runs.decisions import STALE, Decision, Facts, Reached, Rejection, Request
from headwater.processors.runs.host_messages import CallTasks, DropTasks, HostMessage, TaskCall
from headwater.processors.runs.limits import DEFAULT_LIMITS, bounded, recorded
from headwater.processors.runs.outbox import queue
from headwater.processors.runs.slots import no_slots
from headwater.schemas.failures import (
    GRAPH_INVALID,
    INSTANCE_NOT_ERRORED,
    INVALID_PARAMS,
    STEP_NOT_FOUND,
)
from headwater.schemas.history import (
    ActivateJob,
    Artifact,
    AskSlot,
    CancelRun,
    CompleteJob,
    ExtendJob,
    FailJob,
    Failure,
    FinishChild,
    GrantSlot,
    Json,
    Limits,
    MigrateRun,
    NoteRefusal,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    ReturnSlot,
    RunCommand,
    RunErrored,
    RunEvent,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SendEvent,
    SetBranchOutput,
    StartRun,
    TasksDispatched,
    TerminateRun,
    TokensCancelled,
)
from headwater.schemas.statuses import RunStatus

#: Compiled definitions kept for runs, in addition to the newest of every workflow.
_GRAPHS_MAX: Final = 256


class GraphEngine:
    """Implementation of `processors.runs.engine.Engine`; see there for the methods.

    A run keeps the definition and the limits that it started with.
    """

    kind: Final = KIND
    short_steps: Final = None
    #: Raise it when GraphRun, Run or a struct in them changes.
    format: Final = 4

    def __init__(
        self,
        graphs: Iterable[Graph] = (),
        limits: Limits = DEFAULT_LIMITS,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._limits = limits
        #: Evaluates expressions and schemas that may take long; without it there are no limits.
        self._evaluator = evaluator
        self._graphs: dict[str, Graph] = {}
        self._documents: dict[str, Json] = {}
        self._known: dict[str, Graph] = {}
        self._deployed: dict[Json, Graph] = {}
        for graph in graphs:
            self.deploy(graph)

    def deploy(self, graph: Graph) -> None:
        """Use a definition for new runs of its name from now on."""
        name = graph.definition.name
        self._graphs[name] = self._known[graph.digest] = graph
        self._documents[name] = text_of(to_dict(graph.definition))

    def _graph(self, run: GraphRun) -> Graph:
        digest = run.definition.digest if run.definition else ""
        graph = self._known.get(digest)
        if graph is None:
            graph = _compile_into(self._known, digest, run.document)
        return graph

    def _graph_of_document(self, document: Json) -> Graph:
        """Return the graph of a deployment's document."""
        graph = self._deployed.get(document)
        if graph is None:
            graph = _compile_into(self._deployed, document, document)
        return graph

    def _draft(self, run: GraphRun, now_ms: int) -> Draft:
        return Draft(run, self._graph(run), now_ms, self._evaluator)

    # -- deciding

    def decide_command(self, run: GraphRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decide a command."""
        if isinstance(command, SendEvent):
            problem = wide_integer_problem(command.payload, "payload")
            if problem:
                return Rejection(INVALID_PARAMS, bounded(problem))
        if run is None or isinstance(command, StartRun | RestartRun):
            return self._start(run, runs.begin(run, command, facts, KIND, self._limits), facts)
        return self._decide_for_run(run, command, facts.sent_at_ms, facts.now_ms)

    def _start(self, before: GraphRun | None, decision: Decision, facts: Facts) -> Decision:
        """Start a run on the document of its deployment, or else on the newest definition."""
        if isinstance(decision, Rejection):
            return decision
        first, *others = decision
        assert isinstance(first, RunStarted)  # noqa: S101, the first event of every run
        graph, document = self._graphs.get(facts.workflow), facts.document
        if document is not None:
            try:
                graph = self._graph_of_document(document)
            except DefinitionInvalid as error:
                # It was deployed by a release with other validation rules.
                return Rejection(GRAPH_INVALID, bounded(str(error)))
        elif graph is not None:
            document = self._documents[facts.workflow]
        elif before is not None:
            graph, document = self._graph(before), before.document
        else:
            return runs.not_found(facts.instance_id)
        problem = _input_problem(graph, first.params, Evaluations(self._evaluator))
        if problem:
            return Rejection(INVALID_PARAMS, bounded(problem))
        artifact = Artifact(graph.definition.name, "", graph.digest)
        first = msgspec.structs.replace(first, definition=artifact)
        opening_events = [first, *_end_children_of(before), *others]
        instance = (facts.workflow, facts.instance_id)
        return start_events(
            before, graph, document, opening_events, instance, facts.now_ms, self._evaluator
        )

    def _decide_for_run(  # noqa: PLR0911, PLR0912, C901, one case per command
        self, run: GraphRun, command: RunCommand, sent_at_ms: int, now_ms: int
    ) -> Decision:
        match command:
            case SendEvent():
                event = runs.send_event(run, command, sent_at_ms, self._limits)
                if isinstance(event, Rejection):
                    return event
                if not run.waits:
                    return [event]
                return decide_event(self._draft(run, now_ms), event, min(sent_at_ms, now_ms))
            case PauseRun():
                return runs.pause(run, command)
            case ResumeRun():
                decision = runs.resume(run, command)
                if isinstance(decision, Rejection) or run.in_flight > run.jobs:
                    return decision
                # What happened during the pause is decided by the timer, which is due at once.
                return [*decision, RunSuspended()]
            case TerminateRun() | CancelRun():
                rejection = runs.may_end(run, command)
                if rejection:
                    return rejection
                # No workflow code runs here that would have to handle the cancellation.
                cancelled = isinstance(command, CancelRun)
                ending = RunTerminated(command.reason, cancelled)
                reason = "the run was cancelled" if cancelled else "the run was ended"
                return end_events(self._draft(run, now_ms), ending, reason)
            case RetryRun():
                return self._retry(run, command, now_ms)
            case SetBranchOutput():
                return set_branch_output(run, command)
            case MigrateRun():
                return self._migrate(run, command)
            case FinishChild():
                if run.ended:
                    return STALE
                return decide_child_finished(self._draft(run, now_ms), command, sent_at_ms)
            case NoteRefusal():
                return runs.note_refusal(run, command)
            case AskSlot() | ReturnSlot() | GrantSlot():
                return no_slots(run)
            case ActivateJob() | CompleteJob() | FailJob() | ExtendJob():
                return decide_job(self._draft(run, now_ms), command, sent_at_ms)
            case StartRun() | RestartRun():
                return STALE

    def _retry(self, run: GraphRun, command: RetryRun, now_ms: int) -> Decision:
        """Start a new run that continues where the previous one failed, on the same definition."""
        if run.status is not RunStatus.ERRORED:
            return Rejection(
                INSTANCE_NOT_ERRORED,
                f"expected an errored instance to retry, found {run.instance_id} {run.status}; "
                "restart runs it again from the beginning",
            )
        if command.from_key is not None:
            return Rejection(
                STEP_NOT_FOUND,
                f"expected a retry of {run.instance_id} to name no step, found "
                f"{bounded(repr(command.from_key))}: a graph continues with the tokens of its "
                "failed run, and cannot undo what they did to its context; restart runs it again "
                "from the beginning",
            )
        made_from = (run.definition, run.deployment, run.once, run.labels)
        settings = (*made_from, recorded(self._limits), run.depth, run.trace)
        first = RunStarted(run.params, run.seed, run.parent, (), (), KIND, *settings)
        instance = (run.workflow, run.instance_id)
        graph = self._graph(run)
        return start_events(run, graph, run.document, [first], instance, now_ms, self._evaluator)

    def _migrate(self, run: GraphRun, command: MigrateRun) -> Decision:
        """Continue on another definition."""
        try:
            after = self._graph_of_document(command.document)
        except DefinitionInvalid as error:
            return Rejection(GRAPH_INVALID, bounded(str(error)))
        evaluations = Evaluations(self._evaluator)
        return decide_migration(run, self._graph(run), after, command, evaluations)

    def decide(self, run: GraphRun, request: Request, now_ms: int) -> Decision:
        """Decide about task results and due times."""
        decider = DECIDERS.get(type(request))
        if run.ended or decider is None:
            return STALE
        return decider(self._draft(run, now_ms), request)

    def fail_run(
        self, run: GraphRun, failure: Failure, *, with_children: bool = True
    ) -> list[RunEvent]:
        """End a run, its tokens and their children."""
        draft = self._draft(run, run.updated_at_ms)
        return end_events(
            draft, RunErrored(failure), "the run has failed", with_children=with_children
        )

    event_location = staticmethod(location_of)
    size_advice = (
        "pass on less at once: map what is needed instead of whole outputs, fewer branches of a "
        "foreach, smaller items"
    )

    # -- applying

    begin = staticmethod(appliers.begin)
    apply = staticmethod(appliers.apply)

    # -- what follows

    def message_for_host(
        self, run: GraphRun, event: RunEvent, activation: int, sequence: int
    ) -> HostMessage | None:
        """Return the message that starts or drops attempts at the host."""
        match event:
            case TasksDispatched():
                tokens = [run.tokens[task.token] for task in event.tasks if task.job is None]
                return self._calls(run, tokens, activation) if tokens else None
            case TokensCancelled():
                return DropTasks(activation, tuple(map(str, event.tokens)))
            case _:
                return None

    def _calls(self, run: GraphRun, tokens: list[LiveToken], activation: int) -> CallTasks:
        graph = self._graph(run)
        calls = tuple(_call(graph, run, token) for token in tokens)
        run_id = (run.workflow, run.instance_id, run.run_number)
        return CallTasks(activation, *run_id, calls, run.limits, run.context.text)

    def activate(self, run: GraphRun, activation: int) -> HostMessage | None:
        """Return a message that starts the attempts in flight, or None if there are none."""
        tokens = [
            token
            for token in run.tokens.values()
            if token.in_flight and token.job is None and token.number not in run.held
        ]
        return self._calls(run, tokens, activation) if tokens else None

    @staticmethod
    def is_runnable(run: GraphRun, now_ms: int) -> bool:
        """Whether attempts are in flight."""
        return run.status is RunStatus.ACTIVE

    @staticmethod
    def attempts_due(run: GraphRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """Return nothing: an event starts every attempt."""
        return {}

    @staticmethod
    def next_wake_ms(run: GraphRun, after_ms: int = 0) -> int | None:
        """Return when a wait ends or times out, or a retry is due; a backlog is due at once."""
        if run.ended or run.is_halted:
            return None
        if run.has_backlog:
            return run.started_at_ms
        # A decision may leave ends of waits, and retries: they are due until they are handled.
        due = (
            due_ms
            for due_ms, _, key in index_of(run)
            if due_ms > after_ms or due_ms == run.times[key]
        )
        return next(due, None)

    @staticmethod
    def expected_attempt(run: GraphRun, key: str) -> int | None:
        """Return the number of the attempt in flight."""
        token = run.token_of(key)
        if token is None or not token.in_flight or token.number in run.held:
            return None
        return token.attempts + 1

    # -- stored state

    encode = staticmethod(encode_state)
    decode = staticmethod(decode_state)

    @staticmethod
    def drop_finished(run: GraphRun) -> None:
        """Drop state of an ended run. A retry needs all of it, a restart only the definition."""
        if run.status is not RunStatus.ERRORED:
            for collection in (
                *(run.tokens, run.forks, run.branches, run.meetings, run.gatherings),
                *(run.times, run.waits, run.held),
            ):
                collection.clear()
            drop_index(run)
            run.mailbox.clear()
            run.latest = None
            run.shared, run.results = {}, {}


def _compile_into(graphs: dict[str, Graph], key: str, document: Json) -> Graph:
    """Compile a graph and cache it. Evict the oldest if the cache is full."""
    graph = graph_of(json.loads(document))
    if len(graphs) >= _GRAPHS_MAX:
        del graphs[next(iter(graphs))]
    graphs[key] = graph
    return graph


def _call(graph: Graph, run: GraphRun, token: LiveToken) -> TaskCall:
    node, policy = graph.node(token.node), policy_of(graph, token)
    reached = Reached(
        str(token.number),
        token.node,
        token.number,
        run.updated_at_ms,
        policy.limit + 1,
        node.timeout_ms or 0,
    )
    return TaskCall(
        node.task or "",
        reached,
        token.attempts + 1,
        token.input or "null",
        policy,
        idempotency_token(run, token.number),
    )


def _input_problem(graph: Graph, params: Json, evaluations: Evaluations) -> str | None:
    """Return what is wrong with the input of a run, or None."""
    try:
        value = read_json(params)
    except JsonInvalid as error:
        # JSON allows numbers of any length; this parser has a limit.
        return f"input: expected JSON that can be read, found: {error}"
    schema = graph.input_schema
    problem = wide_integer_problem(params, "input")
    if problem or schema is None:
        return problem
    return schema.problem(value, "input", evaluations)


def _end_children_of(before: GraphRun | None) -> list[RunEvent]:
    """Return the events that end the children of a run that is restarted while it is active."""
    if before is None or before.ended:
        return []
    return queue(before, end_children(before, before.tokens, "its parent was restarted"))
