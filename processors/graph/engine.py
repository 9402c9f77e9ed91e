"""The engine of graphs: a definition says what follows from what, and tasks do the work."""

import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headwater.processors.evaluations import Evaluations, Evaluator
from headwater.processors.graph import appliers, encoding
from headwater.processors.graph.decide import (
    DECIDERS,
    child_finished,
    ended,
    policy_of,
    resumed,
    started,
)
from headwater.processors.graph.definition import DefinitionInvalid, to_dict
from headwater.processors.graph.dispatching import idempotency_token
from headwater.processors.graph.draft import Draft, text_of
from headwater.processors.graph.ends import end_children
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.host_messages import CallTasks, DropTasks, TaskCall
from headwater.processors.graph.jobs import decide_job
from headwater.processors.graph.places import place_of
from headwater.processors.graph.state import KIND, GraphRun, LiveToken
from headwater.processors.json_texts import JsonInvalid, read_json
from headwater.processors.runs import decide as runs
from headwater.processors.runs.decisions import STALE, Decision, Facts, Rejection
from headwater.processors.runs.host_messages import HostMessage
from headwater.processors.runs.limits import DEFAULT_LIMITS, bounded, recorded
from headwater.processors.runs.outbox import queue
from headwater.processors.runs.requests import Reached, Request
from headwater.processors.runs.slots import no_slots
from headwater.processors.runs.state import Entry
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
    NoteRefusal,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    ReturnSlot,
    RunCommand,
    RunErrored,
    RunEvent,
    RunResumed,
    RunStarted,
    RunTerminated,
    SendEvent,
    StartRun,
    TasksDispatched,
    TerminateRun,
    TokensCancelled,
)
from headwater.schemas.statuses import RunStatus

#: Definitions of runs that stay compiled, besides the newest of each workflow.
_GRAPHS_MAX: Final = 256


class GraphEngine:
    """Implements `processors.runs.engine.Engine`, which says what the methods mean.

    Shape:  graphs are what new runs are made from, by their names. A run stays on the
            definition that it began with, which it holds, and is held to the limits that it began
            with.
    """

    kind: Final = KIND
    #: A change of GraphRun, Run or their parts is a new one.
    format: Final = 1

    def __init__(
        self,
        graphs: Iterable[Graph] = (),
        limits: Limits = DEFAULT_LIMITS,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._limits = limits
        #: What evaluates expressions and schemas that may take long; without it nothing is limited.
        self._evaluator = evaluator
        self._graphs: dict[str, Graph] = {}
        self._documents: dict[str, Json] = {}
        self._known: dict[str, Graph] = {}
        self._deployed: dict[Json, Graph] = {}
        for each in graphs:
            self.deploy(each)

    def deploy(self, graph: Graph) -> None:
        """Makes new runs of its name from a definition, from now on."""
        name = graph.definition.name
        self._graphs[name] = self._known[graph.digest] = graph
        self._documents[name] = text_of(to_dict(graph.definition))

    def _graph(self, run: GraphRun) -> Graph:
        digest = run.definition.digest if run.definition else ""
        found = self._known.get(digest)
        if found is None:
            found = _kept(self._known, digest, run.document)
        return found

    def _of(self, document: Json) -> Graph:
        """The graph of a document of a deployment."""
        found = self._deployed.get(document)
        if found is None:
            found = _kept(self._deployed, document, document)
        return found

    def _draft(self, run: GraphRun, now_ms: int) -> Draft:
        return Draft(run, self._graph(run), now_ms, self._evaluator)

    # -- deciding

    def decide_command(self, run: GraphRun | None, command: RunCommand, facts: Facts) -> Decision:
        """Decides a command."""
        if run is None or isinstance(command, StartRun | RestartRun):
            return self._begun(run, runs.begin(run, command, facts, KIND, self._limits), facts)
        return self._decide_of(run, command, facts.sent_at_ms, facts.now_ms)

    def _begun(self, before: GraphRun | None, begun: Decision, facts: Facts) -> Decision:
        """A run from the beginning: on a document, else the newest definition of its workflow."""
        if isinstance(begun, Rejection):
            return begun
        first, *others = begun
        assert isinstance(first, RunStarted)  # noqa: S101, that is how a run begins
        graph, document = self._graphs.get(facts.workflow), facts.document
        if document is not None:
            try:
                graph = self._of(document)
            except DefinitionInvalid as fault:
                # A release with other rules has deployed it.
                return Rejection(GRAPH_INVALID, bounded(str(fault)))
        elif graph is not None:
            document = self._documents[facts.workflow]
        elif before is not None:
            graph, document = self._graph(before), before.document
        else:
            return runs.not_found(facts.instance_id)
        wrong = _input_fault(graph, first.params, Evaluations(self._evaluator))
        if wrong:
            return Rejection(INVALID_PARAMS, bounded(wrong))
        made_from = Artifact(graph.definition.name, "", graph.digest)
        first = msgspec.structs.replace(first, definition=made_from)
        beginning = [first, *_ended_children(before), *others]
        who = (facts.workflow, facts.instance_id)
        return started(before, graph, document, beginning, who, facts.now_ms, self._evaluator)

    def _decide_of(  # noqa: PLR0911, PLR0912, C901, one for each command
        self, run: GraphRun, command: RunCommand, sent_at_ms: int, now_ms: int
    ) -> Decision:
        match command:
            case SendEvent():
                received = runs.send_event(run, command, sent_at_ms, self._limits)
                return received if isinstance(received, Rejection) else [received]
            case PauseRun():
                return runs.pause(run, command)
            case ResumeRun():
                decided = runs.resume(run, command)
                if isinstance(decided, Rejection):
                    return decided
                return resumed(self._draft(run, now_ms), RunResumed())
            case TerminateRun() | CancelRun():
                refused = runs.may_end(run, command)
                if refused:
                    return refused
                # There is no code to be told: its tasks end as they do at any end.
                cancelled = isinstance(command, CancelRun)
                what = RunTerminated(command.reason, cancelled)
                how = "the run was cancelled" if cancelled else "the run was ended"
                return ended(self._draft(run, now_ms), what, how)
            case RetryRun():
                return self._retried(run, command, now_ms)
            case FinishChild():
                if run.ended:
                    return STALE
                return child_finished(self._draft(run, now_ms), command, sent_at_ms)
            case NoteRefusal():
                return runs.note_refusal(run, command)
            case AskSlot() | ReturnSlot() | GrantSlot():
                return no_slots(run)
            case ActivateJob() | CompleteJob() | FailJob() | ExtendJob():
                return decide_job(self._draft(run, now_ms), command, sent_at_ms)
            case StartRun() | RestartRun():
                return STALE

    def _retried(self, run: GraphRun, command: RetryRun, now_ms: int) -> Decision:
        """A new run that goes on where the one before has failed, on the same definition."""
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
                f"{bounded(repr(command.from_key))}: a graph goes on with the tokens that its run "
                "had when it failed, and cannot take back what others did to its context; restart "
                "runs it again from the beginning",
            )
        more = (run.definition, run.deployment, run.once, run.labels, recorded(self._limits))
        first = RunStarted(run.params, run.seed, run.parent, (), (), KIND, *more)
        who = (run.workflow, run.instance_id)
        graph = self._graph(run)
        return started(run, graph, run.document, [first], who, now_ms, self._evaluator)

    def decide(self, run: GraphRun, request: Request, now_ms: int) -> Decision:
        """Decides what a task has come to, and what is due."""
        decider = DECIDERS.get(type(request))
        if run.ended or decider is None:
            return STALE
        return decider(self._draft(run, now_ms), request)

    def fail_run(
        self, run: GraphRun, failure: Failure, *, with_children: bool = True
    ) -> list[RunEvent]:
        """Ends a run, its tokens, and their children."""
        draft = self._draft(run, run.updated_at_ms)
        return ended(draft, RunErrored(failure), "the run has failed", with_children=with_children)

    event_location = staticmethod(place_of)
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
        """Attempts that begin, and those that are no longer wanted."""
        match event:
            case TasksDispatched():
                tokens = [run.tokens[each.token] for each in event.tasks if each.job is None]
                return self._calls(run, tokens, activation) if tokens else None
            case TokensCancelled():
                return DropTasks(activation, tuple(map(str, event.tokens)))
            case _:
                return None

    def _calls(self, run: GraphRun, tokens: list[LiveToken], activation: int) -> CallTasks:
        graph = self._graph(run)
        calls = tuple(_call(graph, run, token) for token in tokens)
        who = (run.workflow, run.instance_id, run.run_number)
        return CallTasks(activation, *who, calls, run.limits)

    def activate(self, run: GraphRun, activation: int) -> HostMessage | None:
        """Has the attempts begun that are under way; None without any."""
        tokens = [token for token in run.tokens.values() if token.in_flight and token.job is None]
        return self._calls(run, tokens, activation) if tokens else None

    @staticmethod
    def is_runnable(run: GraphRun, now_ms: int) -> bool:
        """Whether attempts are under way."""
        return run.status is RunStatus.ACTIVE

    @staticmethod
    def attempts_due(run: GraphRun, activation: int, now_ms: int) -> Mapping[str, HostMessage]:
        """None: each attempt begins by an event."""
        return {}

    @staticmethod
    def next_wake_ms(run: GraphRun, after_ms: int = 0) -> int | None:
        """When a task is tried again, or what waits has waited too long."""
        if run.ended or not run.times:
            return None
        times = (_moves_at_ms(run, key, at_ms) for key, at_ms in run.times.items())
        return min((at_ms for at_ms in times if at_ms > after_ms), default=None)

    @staticmethod
    def expected_attempt(run: GraphRun, key: str) -> int | None:
        """The number of the attempt that is under way."""
        token = run.token_of(key)
        return None if token is None or not token.in_flight else token.attempts + 1

    # -- the state at rest

    encode = staticmethod(encoding.encode)
    decode = staticmethod(encoding.decode)

    @staticmethod
    def drop_finished(run: GraphRun) -> None:
        """A retry needs all that is left, a restart the definition alone."""
        run.mailbox.clear()
        if run.status is not RunStatus.ERRORED:
            for left in (run.tokens, run.forks, run.branches, run.meetings, run.times):
                left.clear()
            run.latest = None
            run.shared, run.results = {}, {}

    @staticmethod
    def steps(run: GraphRun) -> list[tuple[str, Entry]]:
        """None: what people see of a graph are its tokens."""
        return []


def _kept(graphs: dict[str, Graph], key: str, document: Json) -> Graph:
    """Read a graph, and keep it in place of the oldest one if there are many."""
    graph = graph_of(json.loads(document))
    if len(graphs) >= _GRAPHS_MAX:
        del graphs[next(iter(graphs))]
    graphs[key] = graph
    return graph


def _moves_at_ms(run: GraphRun, key: str, at_ms: int) -> int:
    """A retry is due at its time; what others may end, when that is over."""
    token = run.token_of(key)
    return at_ms if token is not None and not token.waits_for_others else at_ms + 1


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


def _input_fault(graph: Graph, params: Json, evaluations: Evaluations) -> str | None:
    """What is wrong with what a run is to begin with."""
    try:
        value = read_json(params)
    except JsonInvalid as error:
        # Numbers of any length are JSON; what reads it here has its bounds.
        return f"input: expected JSON that can be read, found: {error}"
    schema = graph.input_schema
    return None if schema is None else schema.problem(value, "input", evaluations)


def _ended_children(before: GraphRun | None) -> list[RunEvent]:
    """The end of the children of a run that another one follows, while it was under way."""
    if before is None or before.ended:
        return []
    return queue(before, end_children(before, before.tokens, "its parent was restarted"))
