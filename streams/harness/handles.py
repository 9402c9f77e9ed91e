"""Handles of workflows and instances in tests: create, control and inspect instances."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar

from typing_extensions import override

from headwater.processors.graph.builder import GraphWorkflow
from headwater.processors.graph.definition import to_dict
from headwater.processors.graph.draft import text_of
from headwater.processors.graph.explaining import explain
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.introspection import (
    introspect_tokens,
    simulate_routing,
    simulate_synchronization,
)
from headwater.processors.graph.migrating import simulate_migration
from headwater.processors.graph.past import Past, draw
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.inspection import (
    EXPLAIN,
    SIMULATE_MIGRATION,
    SIMULATE_ROUTING,
    SIMULATE_SYNCHRONIZATION,
    SVG,
    TOKENS,
    TRACE,
    TRACED_MAX,
    Question,
)
from headwater.processors.runs.lifecycle import Action
from headwater.processors.runs.limits import (
    BATCH_MAX,
    DEPLOYMENT_MAX,
    REASON_MAX,
    STEP_KEY_MAX,
    TICK_MAX,
    VALUE_BYTES_TOP,
    name_problem,
)
from headwater.processors.runs.state import Run
from headwater.schemas.answers import History, StatusOfRun
from headwater.schemas.failures import (
    INSTANCE_EXISTS,
    INVALID_INSTANCE_ID,
    RUN_NOT_FOUND,
    CommandRefusedError,
    InstanceFailedError,
    is_refused,
    refused,
)
from headwater.schemas.graph_answers import MigrationPlan
from headwater.schemas.history import (
    Command,
    HistoryAppended,
    Json,
    Limits,
    MigrateRun,
    NodeRename,
    ReplySent,
    SendEvent,
    SetBranchOutput,
    StartRun,
)
from headwater.schemas.statuses import OPEN, RunStatus
from headwater.streams.authoring.inspection import InspectableInstance, InspectionQuery
from headwater.streams.authoring.lifecycle import Controllable
from headwater.streams.authoring.request_arguments import (
    checked_event_type,
    checked_instance_id,
    checked_labels,
    parse_batch,
)
from headwater.streams.authoring.value_types import output_of
from headwater.streams.authoring.values import encode_object, encode_params, utf8_safe
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, name_of
from headwater.streams.harness.histories import error_of, history_of, value_of

#: Error code for a body that its route does not accept.
_INVALID_BODY = "invalid_body"
_NO_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType({})


def check_count(name: str, count: object) -> None:
    """Check a limit of a tick.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is out of range.
    """
    if count is None:
        return
    message = f"expected {name} to be a whole number from 1 to {TICK_MAX:,}, found {count!r:.80}"
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(message)
    if not 1 <= count <= TICK_MAX:
        raise ValueError(message)


def _check_argument(name: str, argument: str) -> None:
    """Check the text that an action takes.

    Raises:
        CommandRefusedError: The API does not accept it.
    """
    if name == "reason":
        _check_text("the reason", argument, 0, REASON_MAX)
        return
    _check_text(name, argument, 1, STEP_KEY_MAX if name == "fromStep" else DEPLOYMENT_MAX)
    if name == "fromStep" and "\0" in argument:
        raise refused(_INVALID_BODY, f"{name}: expected a step's key without NUL")


def _check_text(what: str, text: object, least: int, most: int) -> None:
    if not isinstance(text, str) or not least <= len(text) <= most or utf8_safe(text) != text:
        raise refused(
            _INVALID_BODY,
            f"expected {what} to be text of {least} to {most:,} characters that UTF-8 can hold, "
            f"found {text!r:.80}",
        )


# -- inspection


def answer_query(
    past: Past, records: Iterable[HistoryAppended], query: InspectionQuery[Any]
) -> Any:  # noqa: ANN401, depends on the query
    """Answer a query about a run from its instance's records.

    Raises:
        CommandRefusedError: As for `InspectableInstance`.
    """
    traced = query.question is TRACE
    past.until = query.numbers.get("to" if traced else "at")
    folded = Tracing(past, query.numbers.get("from") or 0, TRACED_MAX) if traced else past
    for record in records:
        if folded.is_done():
            break
        folded.apply(record)
    answer = past.refused() or _answer(past, folded, query)
    if isinstance(answer, Rejection):
        raise refused(answer.code, answer.message)
    return answer


def _answer(past: Past, folded: Past | Tracing, query: InspectionQuery[Any]) -> Any:  # noqa: ANN401, depends on the query
    numbers, texts = query.numbers, query.texts or {}
    question = query.question
    if question is TOKENS:
        after = numbers.get("after")
        limit = numbers.get("pageSize")
        return introspect_tokens(past, after=-1 if after is None else after, limit=limit)
    if texts:
        return _simulate(past, question, texts)
    if question is EXPLAIN:
        return explain(past)
    if isinstance(folded, Tracing):
        return folded.page()
    return draw(past, "svg" if question is SVG else "mermaid")


def _simulate(past: Past, question: Question[Any], texts: Mapping[str, Json | None]) -> Any:  # noqa: ANN401, depends on the question
    names = {name: json.loads(text) for name, text in texts.items() if text and name != "output"}
    if question is SIMULATE_ROUTING:
        return simulate_routing(past, **names, output=texts.get("output"))
    if question is SIMULATE_SYNCHRONIZATION:
        return simulate_synchronization(past, **names)
    assert question is SIMULATE_MIGRATION  # noqa: S101, the only other one with values
    after = graph_of(names["to"])
    return simulate_migration(past, after=after, version=None, renamed=names["map"])


# -- instances

A = TypeVar("A")


class Harness(Protocol):
    """The harness as its handles use it."""

    def runs(self, workflow: str, instance_id: str) -> dict[int, Run]:
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
        runs = self._harness.runs(self.workflow_name, self.id)
        run = runs[max(runs)]
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
        records = self._harness.records(self.workflow_name, self.id)
        latest = max(record.run_number for record in records)
        number = latest if run_number is None else run_number
        if number not in range(latest + 1):
            raise _no_run(run_number, latest)
        return history_of(records, number)

    async def send_event(self, type: str, payload: Any = None) -> None:  # noqa: A002, ANN401
        """Send an event."""
        checked_event_type(type)
        text = encode_object(payload, "an event's payload", VALUE_BYTES_TOP)
        await self._send(SendEvent(self._harness.new_id("evt"), type, text))

    async def set_branch_output(
        self, group: str, branch: int, output: Mapping[str, Any], *, fork: str | None = None
    ) -> None:
        """Replace the output of a branch of an errored graph run; a retry merges it again."""
        text = encode_object(output, "the output of a branch", VALUE_BYTES_TOP)
        await self._send(SetBranchOutput(group, branch, text, fork))

    @override
    async def perform(self, action: Action, arguments: Mapping[str, str] = _NO_ARGUMENTS) -> None:
        for name, argument in arguments.items():
            _check_argument(name, argument)
        await self._send(action.command_with(arguments))

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

    async def migrate(
        self,
        to: GraphWorkflow | Mapping[str, Any],
        *,
        map: Mapping[str, str] | None = None,  # noqa: A002, as the CLI and the API name it
        dry_run: bool = False,
    ) -> MigrationPlan:
        """Continue a run of a graph on another definition of the same name.

        Args:
            to: The definition.
            map: Its nodes by nodes of the run's definition, where the refs differ.
            dry_run: Change nothing.

        Returns:
            Where the live tokens are, or would be, and why not.

        Raises:
            CommandRefusedError: It is not possible (MIGRATION_REFUSED); not for a dry run.
            DefinitionInvalid: The definition contradicts itself.
        """
        graph = to.graph() if isinstance(to, GraphWorkflow) else graph_of(to)
        document = text_of(to_dict(graph.definition))
        renamed = map or {}
        plan = await self._simulate_migration(document, renamed)
        if not dry_run:
            renames = tuple(NodeRename(node, other) for node, other in renamed.items())
            await self._send(MigrateRun(document, graph.digest, None, renames))
        return plan

    async def _send(self, command: Command) -> None:
        reply = await self._harness.send(self.workflow_name, self.id, command)
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)


def _no_run(number: object, latest: int) -> CommandRefusedError:
    return refused(RUN_NOT_FOUND, f"expected a run number of 0 to {latest}, found {number!r:.80}")


# -- workflows


class TestWorkflow(Generic[P_contra, R_co]):
    """A workflow in a test.

    TestWorkflow[P, R] takes P and returns R.
    """

    __test__ = False

    def __init__(self, harness: Harness, workflow: str | Named) -> None:
        self._harness = harness
        self._declared = workflow
        self.name = name_of(workflow)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> TestInstance[R_co]:  # noqa: A002, the name of the contract
        """Return an existing instance.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        self._harness.records(self.name, id)
        return self._handle(id)

    async def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[R_co]:
        """Create an instance. It runs when the test advances.

        Raises:
            CommandRefusedError: The creation was refused: InstanceExistsError,
                WorkflowNotFoundError, InvalidInstanceIdError, InvalidLabelsError or
                WorkflowParamsInvalidError.
            UnserialisableError: The params cannot be encoded.
        """
        instance_id = self._harness.new_id("inst") if id is None else checked_instance_id(id)
        reply = await self._harness.send(self.name, instance_id, self._start(params, labels or {}))
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)
        return self._handle(instance_id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[TestInstance[R_co]]:
        """Create instances, skipping ids that exist, and return the handles of the created ones.

        A server accepts 100 at a time. If it would refuse one of these, for example because of an
        invalid id, none of them is created.

        Raises:
            CommandRefusedError: As for `create`. Instances that were created before stay.
            ValueError: The batch is not a list of {"id": …}.
        """
        new = [
            (instance.id, self._start(instance.params, instance.labels))
            for instance in parse_batch(batch)
        ]
        created: list[TestInstance[R_co]] = []
        for first in range(0, len(new), BATCH_MAX):
            created += await self._create_some(new[first : first + BATCH_MAX])
        return created

    async def _create_some(self, new: Sequence[tuple[str, StartRun]]) -> list[TestInstance[R_co]]:
        longest = self._harness.limits.max_instance_id
        for instance_id, _ in new:
            problem = name_problem("an instance id", instance_id, longest, "max_instance_id")
            if problem:
                raise refused(INVALID_INSTANCE_ID, problem)
        # Of several with the same id, only the first is created.
        replies = [(id_, await self._harness.send(self.name, id_, start)) for id_, start in new]
        for _, reply in replies:
            if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
                raise refused(reply.code, reply.message)
        created = [id_ for id_, reply in replies if not is_refused(reply.code)]
        return [self._handle(id_) for id_ in created]

    def _handle(self, instance_id: str) -> TestInstance[R_co]:
        return TestInstance(self._harness, self.name, instance_id, self._declared)

    def _start(self, params: object, labels: object) -> StartRun:
        text = encode_params(params, self.name, VALUE_BYTES_TOP)
        return StartRun(text, labels=checked_labels(labels))
