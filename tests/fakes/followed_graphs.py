"""Follows the history of a graph's instance with the naive model, which has to agree at every end.

The model is given what came from outside, in the order of the log: results, failures, and times
that were over. Which tokens follow, where branches meet and what becomes of the run is its own.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from headwater.processors.graph.data_flow import map_input
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.planning import INTEGER_ERROR, Token
from headwater.processors.rows.history import HistoryRows
from headwater.processors.rows.plan import plan_record
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import RUN_TIMEOUT
from headwater.schemas.history import (
    BranchFailed,
    BranchOutputSet,
    Failure,
    FanInActivated,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    LogEvent,
    RunCompleted,
    RunErrored,
    RunStarted,
    RunTerminated,
    TaskDispatch,
    TasksDispatched,
    TokenCompleted,
    TokenFailed,
    TokensTimedOut,
)
from tests.property.graph_model import CANCELLED, DONE, FAILED, HELD, READY, WAITING, Model

#: What people see of a token, and what it is for the model.
_SEEN: Final = {
    "completed": {DONE},
    "waiting_for_siblings": {WAITING, HELD},
    "cancelled": {CANCELLED, READY, WAITING, HELD},
    "failed": {READY, FAILED, DONE},
    "timed_out": {READY, WAITING, FAILED, DONE},
}


def _is_wide(failure: Failure) -> bool:
    """Whether a result is refused before anything is done with it."""
    return failure.name == INTEGER_ERROR


class Followed:
    """An instance, as far as it was read."""

    def __init__(self) -> None:
        self._given: Any = None
        self._model: Model | None = None
        self._limits = DEFAULT_LIMITS
        self._rows = HistoryRows()

    @property
    def model(self) -> Model:
        """The run that it is in."""
        assert self._model is not None
        return self._model

    def read(self, records: Iterable[HistoryAppended]) -> None:
        """Reads on; records are those that count."""
        for record in records:
            plan_record(self._rows, record)
            for event in record.events:
                self._take(event)
            if not isinstance(record.events[-1], RunErrored | RunTerminated):
                self._compare(record.run_number)

    def _take(self, event: LogEvent) -> None:  # noqa: C901, PLR0912, PLR0915, one for each event
        match event:
            case RunStarted(kept=None):
                self._given, self._model = json.loads(event.params), None
                self._limits = event.limits or DEFAULT_LIMITS
            case RunStarted():
                self.model.limits = event.limits or DEFAULT_LIMITS
                self.model.restart()
            case GraphStarted():
                graph = graph_of(json.loads(event.document))
                self._model = Model(graph, self._given, self._limits)
            case BranchOutputSet():
                self.model.set_output(event.fork, event.branch, json.loads(event.output))
            case TokenCompleted():
                self.model.complete(self._token(event.token), json.loads(event.result))
                assert self.model.error is None or self.model.stays, self.model.error
            case TokenFailed(retry_at_ms=None):
                token = self._token(event.token)
                if self.model.status[token.id] == FAILED and event.handled:
                    return  # Outputs could not be merged, which the model knows by itself.
                if event.result is None or _is_wide(event.failure):
                    self.model.fail(token, event.failure)
                else:
                    # Its result could not be mapped.
                    self.model.complete(token, json.loads(event.result))
                failed = self.model.error is not None and not self.model.stays
                assert failed != event.handled, self.model.error
            case FanInActivated() if not self.model.activated[event.fork, event.node]:
                self.model.time_out(event.fork, event.node)
                assert self.model.error is None, self.model.error
            case BranchFailed() if event.branch not in self.model.failed.get(event.fork, {}):
                self.model.time_out_branch(event.fork, event.branch, event.failure.message)
                assert event.branch in self.model.failed.get(event.fork, {}), event
            case TokensTimedOut():
                token = self._token(event.tokens[0])
                self.model.time_out(token.fork or "", token.node_ref)
                assert self.model.error is not None, event
            case GraphMigrated():
                names = {moved.node: moved.to for moved in event.nodes}
                tokens = [str(number) for moved in event.nodes for number in moved.tokens]
                self.model.migrate(graph_of(json.loads(event.document)), names, tokens)
            case TasksDispatched():
                for task in event.tasks:
                    self._compare_input(task)
            case RunErrored(failure=Failure(name=name)) if name == RUN_TIMEOUT:
                self.model.error = event.failure.message
            case RunErrored():
                if self.model.error is None:
                    self.model.time_out_into(event.failure.message)
                assert self.model.error == event.failure.message
            case RunCompleted():
                self.model.finish()
                assert self.model.output == json.loads(event.output)
            case _:
                pass

    def _token(self, number: int) -> Token:
        return self.model.tokens[str(number)]

    def _compare_input(self, task: TaskDispatch) -> None:
        """The context of a token is the same, as far as its node looks at it; the first time."""
        if task.input is not None:
            token = self._token(task.token)
            given = map_input(self.model.graph, token.node_ref, self.model.scope(token))
            assert json.loads(task.input) == given, task

    def _compare(self, run_number: int) -> None:
        """The tokens are the same, one by one; in the midst of a record they need not be."""
        tokens = self._model.tokens if self._model else {}
        rows = self._rows.tokens(run_number)
        taken_by: dict[int | None, Counter[str]] = {None: Counter()}
        assert [str(row["id"]) for row in rows] == list(tokens)
        for seen in rows:
            mine = tokens[str(seen["id"])]
            since = Counter(json.loads(seen["iteration_counts"]))
            taken = taken_by[seen["id"]] = taken_by[seen["parent_token_id"]] + since
            place = (seen["node_ref"], seen["path_id"], seen["branch_index"], seen["branch_total"])
            assert (*place, taken) == (
                mine.node_ref,
                mine.path_id,
                mine.branch_index,
                mine.branch_total,
                mine.iteration_counts,
            )
            assert self.model.status[mine.id] in _SEEN.get(seen["status"], {READY}), seen


def followed(records: Iterable[HistoryAppended]) -> None:
    """Follows a whole history."""
    Followed().read(records)
