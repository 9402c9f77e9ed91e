"""The demo of `headwater up`: post the day, print its rows, and run its workflow."""

import asyncio
import json
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click
import httpx2

from headwater.gateway.cli.api import Api
from headwater.gateway.cli.output import print_rows, print_sideways, say
from headwater.gateway.local.demo_day import (
    CONNECTS_LATE,
    TOO_EARLY,
    Posted,
    PostFailed,
    demo_deliveries,
    post,
)
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS
from headwater.gateway.settings.settings import Settings, revealed
from headwater.projections.deliveries.queries import Reader
from headwater.projections.postgres.embedded import psql_program
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance, Step
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError, Overloaded
from headwater.schemas.failures import is_refused
from headwater.schemas.history import Command, SendEvent, StartRun
from headwater.schemas.statuses import EntryKind, RunStatus
from headwater.schemas.tables import DAILY_SUMMARY
from headwater.streams.workflows.client import OutcomeUnknown, WorkflowClient

#: A cold start of the pipeline takes some 10 s on a small machine, and minutes on a busy one.
_OUTCOMES_WITHIN_S: Final = 180.0
_DAY_POLL_EVERY_S: Final = 0.25
_POST_TIMEOUT_S: Final = 30.0
_REPORT_EVERY_S: Final = 5.0

#: URL that commands use by default.
_DEFAULT_URL: Final = "http://127.0.0.1:8080"

_USERS: Final = ("user_amara", "user_bo")
#: Columns shown of the narrow tables; of the days, every column that has a value.
_SLEEP: Final = ("user_id", "source", "start_time", "end_time", "is_nap")
_CONNECTION: Final = ("user_id", "provider", "active", "deactivated_at")
_DAY: Final = ("user_id", "source", "datetime")


class DayFailed(Exception):
    """The demo day's rows did not arrive; the message is one line."""


class DayShow:
    """The demo day, posted to a gateway and read from it."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._url = url_of(settings)
        self._admin = Api(self._url, {"x-admin-key": revealed(settings.admin_key)[0]})
        self._reader = Api(self._url, {"authorization": f"Bearer {revealed(settings.read_key)[0]}"})
        self._waited: Posted | None = None

    def run(self) -> None:
        """Post, wait and print.

        Raises:
            DayFailed: A delivery was refused, or rows did not arrive.
        """
        try:
            posted, outcomes = self._post_and_wait()
            say("")
            print_rows(
                _outcome_rows(posted, outcomes),
                ("delivery", "type", "status", "reason", "rows"),
                title="deliveries",
            )
            days = self._rows_of("daily_summary", _DAY)
            columns = [column.name for column in DAILY_SUMMARY.columns]
            print_sideways(days, _DAY, columns, title="daily_summary")
            nights = self._rows_of("sleep_sessions", _SLEEP)
            print_rows(nights, _SLEEP, title="sleep_sessions")
            connections = self._rows_of("terra_connections", _CONNECTION)
            print_rows(connections, _CONNECTION, title="terra_connections")
        except (PostFailed, click.ClickException) as error:
            raise DayFailed(f"The demo day did not work: {error}") from error

    def print_hints(self) -> None:
        """Print commands to try next."""
        settings = self._settings
        read_key = key_for_example("read_key", revealed(settings.read_key)[0])
        admin_key = key_for_example("admin_key", revealed(settings.admin_key)[0])
        say(
            f"""
Headwater is up at {self._url}; Ctrl-C stops it. Try, in another terminal:

  # everything, in a browser; the key is {admin_key}
  {self._url}/console
  # the rows, over HTTP and in SQL
  curl -H "Authorization: Bearer {read_key}" "{self._url}/v1/sync?limit=10"
  {psql_program()} {settings.postgres}
  # the delivery that had to wait
  {self._command(*self._trace_arguments())}
  # the workflow and its result
  {self._command("instances", "list")}
  # a copy of the rows
  {self._command("sync", "--db", "headwater.sqlite")}
  # deliveries that could not be processed: none
  {self._command("dlq", "list")}

The HTTP API is at {self._url}/schema; logs of the processes are in {settings.data_dir / "logs"}
"""
        )

    def _trace_arguments(self) -> tuple[str, ...]:
        """Return the command that traces the waiting delivery; a duplicate has no trace."""
        waited = self._waited
        if waited is not None and waited.duplicate:
            return ("deliveries", "show", waited.event_id)
        return ("trace", waited.request_id if waited else "REQUEST_ID")

    def _command(self, *words: str) -> str:
        """Return a command line that works as it is printed, in any folder, with this gateway."""
        ours = str(Path(sys.executable).with_name("headwater"))
        program = "headwater" if shutil.which("headwater") == ours else ours
        where = () if self._url == _DEFAULT_URL else ("--url", self._url)
        return shlex.join((program, *words, *where))

    def _post_and_wait(self) -> tuple[list[Posted], dict[str, dict[str, Any]]]:
        """Post in two steps, so that the delivery that arrives too early is seen waiting."""
        deliveries = demo_deliveries()
        secret = self._settings.secrets_of("terra")[0]
        early = [delivery for delivery in deliveries if delivery.name < CONNECTS_LATE]
        late = [delivery for delivery in deliveries if delivery.name >= CONNECTS_LATE]
        say(f"Posting the demo day: {len(deliveries)} deliveries of two people")
        with httpx2.Client(base_url=self._url, timeout=_POST_TIMEOUT_S) as sender:
            posted = post(sender, secret, early, self._clock)
            self._wait(posted, lambda outcome: True)
            posted += post(sender, secret, late, self._clock)
        outcomes = self._wait(posted, lambda outcome: outcome["status"] != "parked")
        self._waited = next(delivery for delivery in posted if delivery.name == TOO_EARLY)
        known = sum(delivery.duplicate for delivery in posted)
        if known:
            say(f"{known} of the {len(posted)} deliveries were there already: duplicates")
        return posted, outcomes

    def _wait(
        self, posted: Sequence[Posted], settled: Callable[[dict[str, Any]], bool]
    ) -> dict[str, dict[str, Any]]:
        """Wait until every delivery has an outcome that is settled."""
        began = reported = time.monotonic()
        outcomes: dict[str, dict[str, Any]] = {}
        while True:
            for delivery in posted:
                if delivery.event_id not in outcomes:
                    outcome = self._outcome(delivery.event_id)
                    if outcome is not None and settled(outcome):
                        outcomes[delivery.event_id] = outcome
            if len(outcomes) == len(posted):
                return outcomes
            now = time.monotonic()
            if now - began > _OUTCOMES_WITHIN_S:
                missing = ", ".join(
                    delivery.name for delivery in posted if delivery.event_id not in outcomes
                )
                raise DayFailed(
                    f"expected {len(posted)} outcomes within {_OUTCOMES_WITHIN_S:.0f} s, found "
                    f"{len(outcomes)}; missing: {missing}. The logs are in "
                    f"{self._settings.data_dir / 'logs'}"
                )
            if now - reported > _REPORT_EVERY_S:
                reported = now
                say(f"Waiting for rows: {len(outcomes)} of {len(posted)} deliveries are done")
            time.sleep(_DAY_POLL_EVERY_S)

    def _outcome(self, event_id: str) -> dict[str, Any] | None:
        outcome = self._admin.find(f"/admin/outcomes/{event_id}")
        return outcome if isinstance(outcome, dict) else None

    def _rows_of(self, table: str, order: Sequence[str]) -> list[dict[str, Any]]:
        """Return the demo people's rows of a table."""
        pages = [self._reader.get("/v1/sync", user_id=user, limit=1000) for user in _USERS]
        rows = [row for page in pages for row in page["tables"][table]]
        return sorted(rows, key=lambda row: [str(row[name]) for name in order])


def _outcome_rows(
    posted: Sequence[Posted], outcomes: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    return [{"delivery": delivery.name, **outcomes[delivery.event_id]} for delivery in posted]


def key_for_example(name: str, secret: str) -> str:
    """Return a key for an example: the public development key, else the variable that holds it."""
    return secret if secret == DEVELOPMENT_SECRETS[name] else f"$HEADWATER_{name.upper()}"


# -- the workflow

#: The app of the demo, as `--app` names it, and its workflow.
DEMO_APP: Final = "headwater.gateway.local.demo.workflows"
DEMO_WORKFLOW: Final = "day-report"

#: As for the demo day's outcomes; all of it takes a few seconds once the workers are running.
_WORKFLOW_TIMEOUT_S: Final = 180.0
#: Pause after a command without an outcome.
_SENT_AGAIN_AFTER_S: Final = 1.0
_WORKFLOW_POLL_EVERY_S: Final = 0.1
_STEPS_MAX: Final = 100
_PARAMS: Final = {"user_id": "user_amara", "date": "2026-07-01"}
_STEP_COLUMNS: Final = ("step", "type", "status", "attempts", "result")


class WorkflowShow:
    """An instance of the demo's workflow, started through Kafka and read from Postgres.

    The instance is started before the demo day is posted and read afterwards, so that it is seen
    waiting.
    """

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
        """Send a command until a worker executes it: one may still be starting."""
        unknown: HeadwaterError | None = None
        try:
            async with self._client() as client, asyncio.timeout(_WORKFLOW_TIMEOUT_S):
                while True:
                    try:
                        reply = await client.send(DEMO_WORKFLOW, self._instance_id, command)
                    except (OutcomeUnknown, BrokerUnavailable, Overloaded) as error:
                        unknown = error
                        await asyncio.sleep(_SENT_AGAIN_AFTER_S)
                        continue
                    # After an unknown outcome, an earlier attempt may be why it was refused.
                    if is_refused(reply.code) and unknown is None:
                        why = f"{reply.code}: {reply.message}"
                        raise DayFailed(f"The demo's workflow did not work: {why}")
                    return
        except TimeoutError:
            if unknown is None:
                raise
            raise DayFailed(
                f"The demo's workflow did not work: no answer within {_WORKFLOW_TIMEOUT_S:.0f} s: "
                f"{unknown.message}. The logs are in {self._settings.data_dir / 'logs'}"
            ) from unknown

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[WorkflowClient]:
        client = WorkflowClient(
            cluster=cluster_of(self._settings),
            client_id="headwater-demo",
            timeout_s=_WORKFLOW_TIMEOUT_S,
            clock=self._clock,
            new_id=self._new_id,
        )
        await client.start()
        try:
            async with asyncio.timeout(_WORKFLOW_TIMEOUT_S):
                while not client.ready:  # noqa: ASYNC110 (it has no event to await)
                    await asyncio.sleep(_WORKFLOW_POLL_EVERY_S)
            yield client
        finally:
            await client.stop()

    async def _finish(self) -> None:
        async with Reader(dsn_of(self._settings)) as reader:
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
        print_rows([_shown(step) for step in steps.rows], _STEP_COLUMNS, title=title)

    async def _until(self, workflows: Workflows, done: Callable[[Instance], bool]) -> Instance:
        """Poll the instance in Postgres until it is done."""
        instance: Instance | None = None
        try:
            async with asyncio.timeout(_WORKFLOW_TIMEOUT_S):
                while True:
                    row = await workflows.instance(DEMO_WORKFLOW, self._instance_id)
                    instance = row.instance if row else None
                    if instance is not None and done(instance):
                        return instance
                    await asyncio.sleep(_WORKFLOW_POLL_EVERY_S)
        except TimeoutError:
            raise DayFailed(
                f"the demo's workflow made no progress within {_WORKFLOW_TIMEOUT_S:.0f} s: "
                f"it {_status_text(instance)}. The logs are in {self._settings.data_dir / 'logs'}"
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
