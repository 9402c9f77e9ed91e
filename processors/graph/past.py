"""A graph run at an earlier point: its history, folded up to one of its events, and its drawing.

The appliers are those of live runs, so the state is the one that the owner decided from. A record
holds one decision or several. A caller that asks for an event within a record sees an intermediate
state, for example all branches that have arrived at a join just before it is activated.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headwater.processors.evaluations import Evaluator
from headwater.processors.graph import appliers
from headwater.processors.graph.diagrams import TokensAt, to_mermaid, to_svg
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import KIND, GraphRun
from headwater.processors.runs.decisions import Rejection
from headwater.schemas.failures import INSTANCE_NOT_FOUND, NOT_A_GRAPH, SEQUENCE_NOT_FOUND
from headwater.schemas.history import (
    CommandRejected,
    Failure,
    FanInActivated,
    GraphMigrated,
    HistoryAppended,
    InstanceDeleted,
    JobActivated,
    LeaderEpochNoted,
    LeaseExpired,
    LogEvent,
    PartitionClaimed,
    PostsSent,
    RunStarted,
    SubworkflowStarted,
    TasksDispatched,
    TaskUnderWay,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
    TransitionsJoined,
    WaitStarted,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WAITING: Final = TokenStatus.WAITING_FOR_SIBLINGS.value
#: Compiled definitions kept in the cache; compiling one takes some milliseconds.
_GRAPHS_KEPT: Final = 64


class PastToken(msgspec.Struct, kw_only=True, gc=False):
    """A token, whether it has ended or not.

    Attributes:
        retry_status: Status after a retry of the run; None if the token had ended before.
    """

    number: int
    node: str
    fork: str | None
    branch: int
    status: str
    updated_at_ms: int
    failure: Failure | None = None
    retry_status: str | None = None


class Past:
    """A run, folded up to an event.

    Records must arrive in order, beginning with the first of the run. A retry continues the run
    before it; their records must come first.

    Attributes:
        until: Number of the last event to apply; None applies all.
    """

    def __init__(
        self,
        workflow: str,
        instance_id: str,
        run_number: int,
        until: int | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        #: Used when decisions are recomputed or simulated.
        self.evaluator = evaluator
        self.workflow = workflow
        self.instance_id = instance_id
        self.run_number = run_number
        self.until = until
        self.state: GraphRun | None = None
        self.tokens: dict[int, PastToken] = {}
        self.at_ms = 0
        self.graph: Graph | None = None
        self.deleted = False
        self.is_code_run = False

    @property
    def run(self) -> GraphRun:
        """Return the state. Call `refused` first, to know whether there is one."""
        assert self.state is not None  # noqa: S101, callers checked `refused`
        return self.state

    @property
    def sequence(self) -> int:
        """Return the number of the last applied event."""
        return self.run.sequence - 1

    def is_relevant(self, record: HistoryAppended) -> bool:
        """Whether a record may belong to this run, or to an earlier run that it continues."""
        is_same_instance = (record.workflow, record.instance_id) == (
            self.workflow,
            self.instance_id,
        )
        return is_same_instance and record.run_number <= self.run_number

    def is_done(self) -> bool:
        """Whether no further record can change the result."""
        run = self.state
        reached = run is not None and run.run_number == self.run_number
        is_past_until = run is not None and self.until is not None and run.sequence > self.until
        return self.is_code_run or self.deleted or (reached and is_past_until)

    def apply(self, record: HistoryAppended) -> None:
        """Apply the events of a record that are relevant."""
        if self.is_relevant(record):
            for event in record.events:
                if self.is_done():
                    return
                self.apply_event(record, event)

    def apply_event(self, record: HistoryAppended, event: LogEvent) -> None:
        """Apply an event of a record."""
        match event:
            case InstanceDeleted():
                self.deleted = True
            case RunStarted():
                self._begin(record, event)
            case CommandRejected() | PartitionClaimed() | LeaderEpochNoted():
                pass
            case _ if self.state is None:
                # The instance was deleted, and its history is being removed.
                self.deleted = True
            case PostsSent():
                appliers.apply(self.state, event, record.at_ms)
            case _:
                appliers.apply(self.state, event, record.at_ms)
                _apply_to_tokens(self.tokens, event, record.at_ms)
                self.at_ms = record.at_ms
                is_new = self.graph is None and self.state.document != _NONE
                if is_new or isinstance(event, GraphMigrated):
                    self.graph = _graph(self.state.document)

    def _begin(self, record: HistoryAppended, event: RunStarted) -> None:
        if event.kind != KIND:
            self.is_code_run = True
            return
        self.state = appliers.begin(self.state, record)
        self.tokens = {
            number: token if token.retry_status is None else _restarted(token, record.at_ms)
            for number, token in self.tokens.items()
            if event.kept is not None
        }
        self.at_ms = record.at_ms
        document = self.state.document
        self.graph = None if document == _NONE else _graph(document)

    def refused(self) -> Rejection | None:
        """Return why there is no state to show, or None. Call it after all records."""
        name = f"{self.workflow}/{self.instance_id}"
        if self.is_code_run:
            message = f"expected an instance of a graph, found {name} to be of code: it has steps"
            return Rejection(NOT_A_GRAPH, message)
        if self.deleted or self.state is None or self.run.run_number != self.run_number:
            return Rejection(INSTANCE_NOT_FOUND, f"expected an instance {name}, found none")
        if self.until is not None and self.until > self.sequence:
            return Rejection(
                SEQUENCE_NOT_FOUND,
                f"at: expected 0 to {self.sequence}, the last event of run {self.run_number} of "
                f"{name}, found {self.until}",
            )
        return None

    def as_of(self) -> dict[str, Any]:
        """Return the fields of `AsOf`, which every response contains."""
        return {
            "workflow_name": self.workflow,
            "instance_id": self.instance_id,
            "run_number": self.run_number,
            "status": self.run.status,
            "sequence": self.sequence,
            "at": moment(self.at_ms),
            "definition_digest": self.run.definition.digest if self.run.definition else "",
        }


#: The document of a run before its GraphStarted is applied.
_NONE: Final = "{}"


@lru_cache(_GRAPHS_KEPT)
def _graph(document: str) -> Graph:
    return graph_of(json.loads(document))


def moment(ms: int) -> datetime:
    """Convert Unix milliseconds to a time."""
    return _EPOCH + timedelta(milliseconds=ms)


def moment_or_none(ms: int | None) -> datetime | None:
    """Convert Unix milliseconds to a time, or None to None."""
    return None if ms is None else moment(ms)


# -- drawing

#: Format of a drawing.
Format: TypeAlias = Literal["svg", "mermaid"]


def draw(past: Past, drawing_format: Format) -> str | Rejection:
    """Return the drawing of a run, as far as it is folded."""
    if past.graph is None:
        return Rejection(
            SEQUENCE_NOT_FOUND,
            f"at: expected 1 or more, where the run of {past.workflow}/{past.instance_id} has its "
            f"definition, found {past.until}",
        )
    definition, tokens = past.graph.definition, tokens_at(past.tokens.values())
    return to_svg(definition, tokens) if drawing_format == "svg" else to_mermaid(definition, tokens)


def tokens_at(tokens: Iterable[PastToken]) -> TokensAt:
    """Count the tokens by node and status, in the order of their creation."""
    counts: dict[str, Counter[str]] = {}
    for token in tokens:
        counts.setdefault(token.node, Counter())[token.status] += 1
    return counts


# -- tokens of a run, whether they have ended or not


def _apply_to_tokens(tokens: dict[int, PastToken], event: LogEvent, at_ms: int) -> None:
    """Apply an event, if it is about tokens."""
    if isinstance(event, GraphMigrated):
        for moved in event.nodes:
            for number in moved.tokens:
                tokens[number].node = moved.to
        return
    if isinstance(event, TokensCreated):
        for index in range(event.count):
            number, branch = event.first + index, event.branch + index
            tokens[number] = PastToken(
                number=number,
                node=event.node,
                fork=event.fork,
                branch=branch,
                status=TokenStatus.PENDING.value,
                updated_at_ms=at_ms,
            )
        return
    status, numbers = status_change(event) or ("", ())
    for number in numbers:
        token = tokens[number]
        token.retry_status = _retry_status(token, event)
        token.status, token.updated_at_ms = status, at_ms
        match event:
            case TokenFailed() | LeaseExpired():
                token.failure = event.failure
            case TokenCompleted():
                token.failure = None
            case _:
                pass


def _retry_status(token: PastToken, event: LogEvent) -> str | None:
    match event:
        case TokensCancelled(kept=True) if token.status == _WAITING:
            return _WAITING
        case TokensCancelled(kept=True) | TokenFailed(retry_at_ms=None, handled=False):
            return TokenStatus.PENDING.value
        case TokensTimedOut():
            return _WAITING
        case _:
            return None


def _restarted(token: PastToken, at_ms: int) -> PastToken:
    status = token.retry_status or token.status
    return msgspec.structs.replace(
        token, status=status, updated_at_ms=at_ms, failure=None, retry_status=None
    )


def status_change(event: LogEvent) -> tuple[str, Sequence[int]] | None:  # noqa: PLR0911, C901, PLR0912
    """Return the status that an event gives to tokens, and the tokens."""
    match event:
        case TokensCreated(first=first, count=count):
            return "pending", range(first, first + count)
        case TasksDispatched(tasks=tasks):
            return "dispatched", [task.token for task in tasks]
        case LeaseExpired(token=token):
            return "dispatched", [token]
        case TaskUnderWay(token=token) | JobActivated(token=token):
            return "executing", [token]
        case TokenCompleted(token=token):
            return "completed", [token]
        case TokenFailed(token=token, retry_at_ms=retry_ms, timed_out=timed_out):
            status = "pending" if retry_ms is not None else "timed_out" if timed_out else "failed"
            return status, [token]
        case TokenArrived(token=token):
            return "waiting_for_siblings", [token]
        case SubworkflowStarted(token=token):
            return "waiting_for_subworkflow", [token]
        case WaitStarted(token=token, event_type=event_type):
            return "waiting_for_time" if event_type is None else "waiting_for_event", [token]
        case FanInActivated(tokens=tokens, elsewhere=elsewhere):
            return "completed", (*tokens, *elsewhere)
        case TransitionsJoined(tokens=tokens):
            return "completed", tokens
        case TokensCancelled(tokens=tokens):
            return "cancelled", tokens
        case TokensTimedOut(tokens=tokens):
            return "timed_out", tokens
        case _:
            return None
