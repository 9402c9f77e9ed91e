"""Start the demo's workflow, and print its steps.

It is started before the demo day is posted and read afterwards, so that it is seen waiting.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from headwater.gateway.cli.output import print_rows
from headwater.gateway.cli.show_day import DayFailed
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.projections.deliveries.queries import Reader
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance, Step
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import Command, ReplySent, SendEvent, StartRun
from headwater.schemas.statuses import EntryKind, RunStatus
from headwater.streams.workflows.client import OutcomeUnknown, WorkflowClient

#: The app of the demo, as `--app` names it, and its workflow.
DEMO_APP: Final = "headwater.gateway.local.demo.workflows"
DEMO_WORKFLOW: Final = "day-report"

#: As for the demo day's outcomes; all of it takes a few seconds once the workers are running.
_TIMEOUT_S: Final = 60.0
_POLL_EVERY_S: Final = 0.1
_STEPS_MAX: Final = 100
_PARAMS: Final = {"user_id": "user_amara", "date": "2026-07-01"}
_COLUMNS: Final = ("step", "type", "status", "attempts", "result")


class WorkflowShow:
    """An instance of the demo's workflow, started through Kafka and read from Postgres."""

    def __init__(
        self, settings: Settings, clock: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._instance_id = f"report-{new_id()}"

    def begin(self) -> None:
        """Start the instance.

        Raises:
            DayFailed: The command was refused, or not answered.
        """
        params = {"url": url_of(self._settings), **_PARAMS}
        self._run(self._send(StartRun(json.dumps(params))))

    def finish(self) -> None:
        """Send the event that the instance waits for, wait for its end and print its steps.

        Raises:
            DayFailed: The instance did not complete.
        """
        self._run(self._finish())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(work)
        except HeadwaterError as error:
            raise DayFailed(f"The demo's workflow did not work: {error.message}") from error
        except TimeoutError as error:
            raise DayFailed("The demo's workflow did not work: Kafka does not answer") from error

    async def _send(self, command: Command) -> None:
        async with self._client() as client, asyncio.timeout(_TIMEOUT_S):
            reply = await self._sent(client, command)
        # The id is unique: an existing instance was created by an earlier attempt.
        if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
            raise DayFailed(f"The demo's workflow did not work: {reply.code}: {reply.message}")

    async def _sent(self, client: WorkflowClient, command: Command) -> ReplySent:
        """Send a command until a worker executes it: one may still be starting."""
        while True:
            try:
                return await client.send(DEMO_WORKFLOW, self._instance_id, command)
            except OutcomeUnknown:
                await asyncio.sleep(_POLL_EVERY_S)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[WorkflowClient]:
        client = WorkflowClient(
            cluster=cluster_of(self._settings),
            client_id="headwater-demo",
            timeout_s=_TIMEOUT_S,
            clock=self._clock,
            new_id=self._new_id,
        )
        await client.start()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not client.ready:  # noqa: ASYNC110 (it has no event to await)
                    await asyncio.sleep(_POLL_EVERY_S)
            yield client
        finally:
            await client.stop()

    async def _finish(self) -> None:
        async with Reader(self._settings.postgres) as reader:
            workflows = Workflows(reader)
            await self._until(
                workflows, lambda instance: _waits(instance) or instance.details.ended
            )
            approval = json.dumps({"by": "the demo"})
            await self._send(SendEvent(self._new_id(), "approval", approval))
            ended = await self._until(workflows, lambda instance: instance.details.ended)
            run = RunKey(DEMO_WORKFLOW, self._instance_id, ended.meta.run_number)
            steps = await workflows.steps(run, limit=_STEPS_MAX)
        if ended.details.status is not RunStatus.COMPLETE:
            error = ended.details.error
            why = f": {error.name}: {error.message}" if error else ""
            raise DayFailed(
                f"expected the demo's workflow to complete, found it {ended.details.status}{why}"
            )
        title = f"workflow {DEMO_WORKFLOW}, instance {self._instance_id}"
        print_rows([_shown(step) for step in steps.rows], _COLUMNS, title=title)

    async def _until(self, workflows: Workflows, done: Callable[[Instance], bool]) -> Instance:
        """Poll the instance in Postgres until it is done."""
        instance: Instance | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    row = await workflows.instance(DEMO_WORKFLOW, self._instance_id)
                    instance = row.instance if row else None
                    if instance is not None and done(instance):
                        return instance
                    await asyncio.sleep(_POLL_EVERY_S)
        except TimeoutError:
            raise DayFailed(
                f"expected the demo's workflow to progress within {_TIMEOUT_S:.0f} s, found it "
                f"{_status_text(instance)}. The logs are in {self._settings.data_dir / 'logs'}"
            ) from None


def _waits(instance: Instance) -> bool:
    step = instance.meta.current_step
    return step is not None and step.type is EntryKind.WAIT


def _status_text(instance: Instance | None) -> str:
    if instance is None:
        return "not in Postgres"
    step = instance.meta.current_step
    error = step.error.message if step and step.error else "no error"
    why = f" at {step.name}: {error}" if step else ""
    return f"{instance.details.status}{why}"


def _shown(step: Step) -> dict[str, Any]:
    return {
        "step": step.name,
        "type": step.type.value,
        "status": step.status.value,
        "attempts": step.attempts or None,
        "result": None if step.result is None else bytes(step.result).decode(),
    }
