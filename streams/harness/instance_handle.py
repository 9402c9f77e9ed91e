"""Handles of instances in tests: actions, status and history."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from headwater.processors.graph.past import Past
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.processors.runs.views import RunView
from headwater.schemas.answers import History, StatusOfRun
from headwater.schemas.failures import (
    RUN_NOT_FOUND,
    CommandRefusedError,
    InstanceFailedError,
    is_refused,
    refused,
)
from headwater.schemas.history import (
    Command,
    HistoryAppended,
    Limits,
    ReplySent,
    RetryRun,
    SendEvent,
)
from headwater.schemas.statuses import OPEN, RunStatus
from headwater.streams.authoring.inspection import InspectableInstance, InspectionQuery
from headwater.streams.authoring.lifecycle import Action, Controllable
from headwater.streams.authoring.request_arguments import checked_event_type
from headwater.streams.authoring.result_types import output_of
from headwater.streams.authoring.values import encode_object
from headwater.streams.authoring.workflow_values import R_co
from headwater.streams.harness.bodies import check_from_step, check_reason
from headwater.streams.harness.histories import error_of, history_of, value_of
from headwater.streams.harness.inspection import answer_query

A = TypeVar("A")


class Harness(Protocol):
    """The harness as its handles use it."""

    def views(self, workflow: str, instance_id: str) -> dict[int, RunView]:
        """Return the runs of an instance, folded from the log."""

    def records(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """Return the records of an instance."""

    async def send(self, workflow: str, instance_id: str, command: Command) -> ReplySent:
        """Send a command and return its outcome."""

    async def run_until_idle(self) -> None:
        """Run until nothing can continue without time or an event."""

    def new_id(self, prefix: str) -> str:
        """Return an id drawn from the seed."""

    @property
    def limits(self) -> Limits:
        """Limits of names and values."""


class TestInstance(Controllable[None], InspectableInstance, Generic[R_co]):
    """An instance in a test.

    TestInstance[R] is an instance of a workflow that returns R.
    """

    __test__ = False

    def __init__(
        self, harness: Harness, workflow: str, instance_id: str, declared: object = None
    ) -> None:
        """Create a handle. `declared` is the workflow object, if known, for its output type."""
        self._harness = harness
        self._declared = declared
        self.workflow_name = workflow
        self.id = instance_id

    async def status(self) -> StatusOfRun:
        """Return the status: `.status`, `.output`, `.error`, `.run_number`."""
        views = self._harness.views(self.workflow_name, self.id)
        run = views[max(views)].state
        assert run is not None  # noqa: S101, a view begins with RunStarted
        return StatusOfRun(
            status=run.status,
            output=value_of(run.output),
            error=error_of(run.failure),
            run_number=run.run_number,
        )

    async def result(self) -> R_co:
        """Run until nothing can continue without time or an event, and return the output.

        Raises:
            InstanceFailedError: The instance ended otherwise.
            TimeoutError: It has not ended. The message has the entries that it waits at.
        """
        await self._harness.run_until_idle()
        status = await self.status()
        instance = f"{self.workflow_name}/{self.id}"
        if not status.ended:
            steps = (await self.history()).steps
            open_entries = ", ".join(
                f"{entry.type} {entry.step_key}" for entry in steps if entry.status in OPEN
            )
            raise TimeoutError(
                f"expected {instance} to end, found it {status.status} at "
                f"{open_entries or 'no entry'}; move the clock with `test.advance(...)`, or send "
                "what it waits for"
            )
        if status.status is RunStatus.COMPLETE:
            output: R_co = output_of(self._declared, status.output)
            return output
        error = status.error
        raise InstanceFailedError(
            instance, status.status, error.name if error else "", error.message if error else ""
        )

    async def history(self, run_number: int | None = None) -> History:
        """Return `.steps`, `.events` and `.logs` of the current run or of another."""
        views = self._harness.views(self.workflow_name, self.id)
        number = max(views) if run_number is None else run_number
        if number not in views:
            raise _no_run(run_number, max(views))
        return history_of(views[number], self.workflow_name, self.id, number)

    async def send_event(self, type: str, payload: Any = None) -> None:  # noqa: A002, ANN401
        """Send an event."""
        checked_event_type(type)
        text = encode_object(payload, "an event's payload", VALUE_BYTES_TOP)
        await self._send(SendEvent(self._harness.new_id("evt"), type, text))

    @override
    async def perform(self, action: Action, reason: str = "") -> None:
        check_reason(reason)
        await self._send(action.with_reason(reason))

    @override
    async def inspect(self, query: InspectionQuery[A]) -> A:
        records = self._harness.records(self.workflow_name, self.id)
        latest = max(record.run_number for record in records)
        run_number = query.numbers.get("runNumber")
        number = latest if run_number is None else run_number
        if not 0 <= number <= latest:
            raise _no_run(number, latest)
        past = Past(self.workflow_name, self.id, number)
        answer: A = answer_query(past, records, query)
        return answer

    async def retry(self, from_step: str | None = None) -> None:
        """Start a new run that keeps everything before the failed step, or before another step.

        Args:
            from_step: Key of the step, as in `history.steps[i].step_key`.

        Raises:
            InstanceNotErroredError: The instance has not errored.
            StepNotFoundError: It has no such step.
        """
        check_from_step(from_step)
        await self._send(RetryRun(from_step))

    async def _send(self, command: Command) -> None:
        reply = await self._harness.send(self.workflow_name, self.id, command)
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)


def _no_run(number: object, latest: int) -> CommandRefusedError:
    return refused(RUN_NOT_FOUND, f"expected a run number of 0 to {latest}, found {number!r:.80}")
