"""A run of a graph as it was: its history, folded up to one of its events.

The appliers are those of live runs, so what is seen is the state that its owner decided in. A
record is one decision or several; who asks for an event within sees the state amid it, for example
who has arrived where branches meet, just before they go on.
"""

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from headwater.processors.evaluations import Evaluator
from headwater.processors.graph import appliers
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.state import KIND, GraphRun
from headwater.processors.runs import token_views
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.token_views import Tokens, retried_tokens
from headwater.schemas.failures import INSTANCE_NOT_FOUND, NOT_A_GRAPH, SEQUENCE_NOT_FOUND
from headwater.schemas.history import (
    CommandRejected,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
    LogEvent,
    PartitionClaimed,
    PostsSent,
    RunStarted,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Definitions that are kept compiled: some milliseconds each.
_GRAPHS_KEPT: Final = 64


class Past:
    """A run, as far as it is folded.

    Shape:  until is the number of the last event that counts; without it, all do. Records come in
            order, from the first of the run on; a retry goes on with the run before it, whose
            records come first.
    """

    def __init__(
        self,
        workflow: str,
        instance_id: str,
        run_number: int,
        until: int | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        #: For decisions that are made again, or tried out.
        self.evaluator = evaluator
        self.workflow = workflow
        self.instance_id = instance_id
        self.run_number = run_number
        self.until = until
        self.state: GraphRun | None = None
        self.tokens: Tokens = {}
        self.at_ms = 0
        self.graph: Graph | None = None
        self.deleted = False
        self.of_code = False

    @property
    def run(self) -> GraphRun:
        """The state; `refused` says whether there is one."""
        assert self.state is not None  # noqa: S101, callers have asked
        return self.state

    @property
    def sequence(self) -> int:
        """The number of the last event that the state has."""
        return self.run.sequence - 1

    def is_wanted(self, record: HistoryAppended) -> bool:
        """Whether a record may be of this run, or of one that it goes on with."""
        about = (record.workflow, record.instance_id) == (self.workflow, self.instance_id)
        return about and record.run_number <= self.run_number

    def is_done(self) -> bool:
        """Whether nothing that comes could change the answer."""
        run = self.state
        reached = run is not None and run.run_number == self.run_number
        enough = run is not None and self.until is not None and run.sequence > self.until
        return self.of_code or self.deleted or (reached and enough)

    def apply(self, record: HistoryAppended) -> None:
        """Applies a record that counts, as far as it is wanted."""
        if self.is_wanted(record):
            for event in record.events:
                if self.is_done():
                    return
                self.apply_event(record, event)

    def apply_event(self, record: HistoryAppended, event: LogEvent) -> None:
        """Applies an event of a record."""
        match event:
            case InstanceDeleted():
                self.deleted = True
            case RunStarted():
                self._begin(record, event)
            case CommandRejected() | PartitionClaimed() | LeaderEpochNoted():
                pass
            case _ if self.state is None:
                # What is left of an instance that was deleted, and whose history is being removed.
                self.deleted = True
            case PostsSent():
                appliers.apply(self.state, event, record.at_ms)
            case _:
                appliers.apply(self.state, event, record.at_ms)
                token_views.apply(self.tokens, event, record.at_ms)
                self.at_ms = record.at_ms
                if self.graph is None and self.state.document != _NONE:
                    self.graph = _graph(self.state.document)

    def _begin(self, record: HistoryAppended, event: RunStarted) -> None:
        if event.kind != KIND:
            self.of_code = True
            return
        self.state = appliers.begin(self.state, record)
        self.tokens = {} if event.kept is None else retried_tokens(self.tokens, record.at_ms)
        self.at_ms = record.at_ms
        document = self.state.document
        self.graph = None if document == _NONE else _graph(document)

    def refused(self) -> Rejection | None:
        """Why nothing can be said of the run, once all records were applied."""
        who = f"{self.workflow}/{self.instance_id}"
        if self.of_code:
            message = f"expected an instance of a graph, found {who} to be of code: it has steps"
            return Rejection(NOT_A_GRAPH, message)
        if self.deleted or self.state is None or self.run.run_number != self.run_number:
            return Rejection(INSTANCE_NOT_FOUND, f"expected an instance {who}, found none")
        if self.until is not None and self.until > self.sequence:
            return Rejection(
                SEQUENCE_NOT_FOUND,
                f"at: expected 0 to {self.sequence}, the last event of run {self.run_number} of "
                f"{who}, found {self.until}",
            )
        return None

    def as_of(self) -> dict[str, Any]:
        """What every answer says of the run: the fields of `AsOf`."""
        return {
            "workflow_name": self.workflow,
            "instance_id": self.instance_id,
            "run_number": self.run_number,
            "status": self.run.status,
            "sequence": self.sequence,
            "at": moment(self.at_ms),
            "definition_digest": self.run.definition.digest if self.run.definition else "",
        }


#: The document of a run whose GraphStarted has not been applied.
_NONE: Final = "{}"


@lru_cache(_GRAPHS_KEPT)
def _graph(document: str) -> Graph:
    return graph_of(json.loads(document))


def moment(ms: int) -> datetime:
    """Unix milliseconds as a time."""
    return _EPOCH + timedelta(milliseconds=ms)


def moment_or_none(ms: int | None) -> datetime | None:
    """Unix milliseconds as a time, if there are any."""
    return None if ms is None else moment(ms)
