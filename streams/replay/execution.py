"""Execution of a run's code from its beginning until it rests.

The author's function runs on its own loop (`loop.py`), and the results that it awaits are delivered
in the order of the log (`run_context.Results`). When it awaits no more recorded results, the run is
live.

Joins, races and loops that have their results still run their branches again, but only to visit
their entries (`branches`). A run that is rolled back is executed again, too
(`activation.Rollback`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from headwater.processors.code.errors import HistoryDivergedError
from headwater.processors.code.host_messages import Activate, Log
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.host_port import HostPort
from headwater.streams.replay.run_context import RunContext
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow


class Execution:
    """One execution of a workflow's function.

    Attributes:
        outcome: Value and error of the function; None until it has returned or raised.
    """

    def __init__(
        self,
        begin: Activate,
        workflow: Workflow,
        payload: Any,  # noqa: ANN401, what the author declared
        host: HostPort,
        *,
        rolling_back: bool,
    ) -> None:
        self.run = RunContext(
            begin,
            host,
            strict=workflow.strict,
            replayed_lines=workflow.replayed_lines,
            rolling_back=rolling_back,
        )
        self.outcome: tuple[Any, BaseException | None] | None = None
        #: Whether the check for changed code is done, or not needed because nothing is recorded.
        self._checked_changes = not begin.entries
        self._workflow = workflow
        self._root = Step(self.run)
        event = WorkflowEvent(
            payload=payload,
            timestamp=datetime.fromtimestamp(begin.started_at_ms / 1_000, UTC),
            instance_id=begin.instance_id,
            workflow_name=begin.workflow,
            run_number=begin.run_number,
        )
        self._task = self.run.loop.create_task(self._main(event))

    async def _main(self, event: WorkflowEvent[Any]) -> None:
        try:
            self.outcome = (await self._workflow(event, self._root), None)
        except BaseException as error:  # noqa: BLE001, whatever an author raises ends the run only
            if not self.run.closed:
                self.outcome = (None, error)

    def run_until_rest(self) -> None:
        """Run the code until it waits for a result that is not recorded yet, or has ended."""
        run = self.run
        run.begin_turn()
        try:
            if self.outcome is None:
                run.loop.run_ready()
            while self.outcome is None and self._deliver_next():
                run.begin_turn()
                run.loop.run_ready()
        except Exception as error:  # noqa: BLE001, raised by the loop, but the author's code fails
            self.outcome = (None, error)
        run.log_failed(run.loop.take_failed(past=True))
        self._warn_of_changed_code()
        if self.outcome is None:
            run.calls.start_deferred()

    def _deliver_next(self) -> bool:
        """Deliver the next event in the log to the code: a result, or the run's cancellation."""
        run = self.run
        cancelled_at = None if run.cancel_delivered else run.cancelled_at
        recorded = run.results.next_recorded(before=cancelled_at)
        if recorded is not None:
            run.results_delivered += 1
            future, entry = recorded
            run.lines.see(entry.sequence)
            if not future.done():
                future.set_result(entry)
        elif cancelled_at is not None:
            run.lines.see(cancelled_at)
            run.cancel_delivered = True
            self._task.cancel()
        return recorded is not None or cancelled_at is not None

    def _warn_of_changed_code(self) -> None:
        """Log a warning if the code has reached a new entry but not all recorded ones.

        When it rests and no loop waits for a commit, all recorded results were delivered, so
        unchanged code would have reached all recorded entries. The check is made once, when the
        code has reached something new.
        """
        run, new = self.run, self.run.journal.first_new
        if self._checked_changes or new is None or run.rolling_back:
            return
        if run.results.awaited_commits():
            return
        self._checked_changes = True
        missed = tuple(key for key in self.not_reached() if not run.entries[key].excused)
        if not missed:
            return
        text = (
            f"the code has reached {new}, which is new, but not {missed[0]}, which is recorded: it "
            "does not fit the history of this run. Usual cause: an entry was renamed, moved or "
            "removed while the run was open. Restore it, or call step.removed in its place, and "
            "deploy"
        )
        line = bounded(text, LOG_MESSAGE_MAX)
        run.send(Log("warn", SYSTEM, line, None, None, None, is_replay=False, missed=missed))

    def return_error(self) -> Exception | None:
        """Return the error of code that has returned but should not have, or None."""
        return self._root.end(None) or self._unvisited()

    def _unvisited(self) -> HistoryDivergedError | None:
        """Return the error of strict code that has not reached a recorded entry."""
        key = next(self.not_reached(), None) if self.run.strict else None
        if key is None:
            return None
        return HistoryDivergedError(key, self.run.entries[key].kind.value, "nothing")

    def not_reached(self) -> Iterator[str]:
        """Yield keys of recorded entries that the code should have reached but has not."""
        for key in self.run.journal.unvisited():
            entry = self.run.entries[key]
            # Cancelled entries may never have been reached: it is chance how far a loser gets. An
            # author cannot mark a recorded time as removed.
            if entry.status is not EntryStatus.CANCELLED and entry.kind is not EntryKind.NOW:
                yield key
