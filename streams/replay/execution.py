"""The code of a run, executed from its beginning until it rests.

The author's function runs on a loop of its own (`loop.py`), and what it awaits is given in the
order of the log (`results.py`). When no recorded result is awaited any more, the run is live.

Joins, races and loops that have their results run their branches again all the same, only for what
they visit (`finished_entries.py`). A run that is rolled back is executed again, too
(`rollback.py`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from headwater.processors.replay.commands import Log
from headwater.processors.replay.errors import HistoryDivergedError
from headwater.processors.replay.host_messages import Activate
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, bounded
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.host_port import HostPort
from headwater.streams.replay.run_context import RunContext
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow


class Execution:
    """One execution of a workflow's function.

    Shape:  `outcome` is None until the function has returned a value or raised an error.
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
        #: Whether nothing is recorded, or it was seen whether the code has come to all of it.
        self._looked = not begin.entries
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
        """Runs the code until it waits for what is not recorded yet, or has ended."""
        run = self.run
        run.begin_turn()
        try:
            if self.outcome is None:
                run.loop.run_ready()
            while self.outcome is None and self._give_next():
                run.begin_turn()
                run.loop.run_ready()
        except Exception as error:  # noqa: BLE001, the loop refuses: it is the author's code that fails
            self.outcome = (None, error)
        run.log_failed(run.loop.take_failed(past=True))
        self._tell_of_changed_code()
        if self.outcome is None:
            run.calls.start_deferred()

    def _give_next(self) -> bool:
        """Gives the code what comes next in the log: a result, or that the run is cancelled."""
        run = self.run
        untold = None if run.told else run.cancelled_at
        recorded = run.results.next_recorded(before=untold)
        if recorded is not None:
            run.results_given += 1
            future, entry = recorded
            run.lines.see(entry.sequence)
            if not future.done():
                future.set_result(entry)
        elif untold is not None:
            run.lines.see(untold)
            run.told = True
            self._task.cancel()
        return recorded is not None or untold is not None

    def _tell_of_changed_code(self) -> None:
        """Warns where code has come to something new and not to all that is recorded.

        When it rests, and no loop is about to begin an iteration, all recorded results were given:
        so it would have come to all that is recorded, had it not been changed. Looked at once, when
        it has come to something new.
        """
        run, new = self.run, self.run.journal.first_new
        if self._looked or new is None or run.rolling_back or run.results.awaits_commit:
            return
        self._looked = True
        missed = tuple(key for key in self._not_reached() if not run.entries[key].excused)
        if not missed:
            return
        text = (
            f"the code has come to {new}, which is new, and not to {missed[0]}, which is recorded: "
            "it does not fit the history of this run; usual cause: an entry was renamed, moved or "
            "taken out while the run was under way. Bring it back, or say step.removed where it "
            "was, and deploy"
        )
        line = bounded(text, LOG_MESSAGE_MAX)
        run.send(Log("warn", SYSTEM, line, None, None, None, is_replay=False, missed=missed))

    def return_fault(self) -> Exception | None:
        """What is wrong with code that has returned, if anything."""
        return self._root.end(None) or self._unvisited()

    def _unvisited(self) -> HistoryDivergedError | None:
        """The error of strict code that has not come to an entry of its history."""
        key = next(self._not_reached(), None) if self.run.strict else None
        if key is None:
            return None
        return HistoryDivergedError(key, self.run.entries[key].kind.value, "nothing")

    def _not_reached(self) -> Iterator[str]:
        """Keys of what is recorded and the code has not come to, though it should have."""
        for key in self.run.journal.unvisited():
            entry = self.run.entries[key]
            # What was cancelled might never have been reached: how far a loser gets is chance. The
            # time is no entry that an author could mark as removed.
            if entry.status is not EntryStatus.CANCELLED and entry.kind is not EntryKind.NOW:
                yield key
