"""`headwater instances …`: create and change instances, one or many; send events to them."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.options import (
    JsonArgument,
    JsonValue,
    check_forced,
    examples,
    force_options,
    yes_option,
)
from headwater.gateway.cli.orders import Operation, PagedOrder
from headwater.gateway.cli.results import Columns, Result, Table, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    label_option,
    service_options,
    workflow_option,
)
from headwater.processors.runs.lifecycle import ACTIONS, CANCEL, MOVE, PAUSE, RESUME, RETRY, Action
from headwater.schemas.history import APP
from headwater.schemas.statuses import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.answers import BulkChanged, InstanceStatus


STATUSES: Final = [status.value for status in RunStatus]
_MATCHED: Final = Columns(("instance", "status"))
#: Participles of bulk actions.
_DONE: Final = {
    "pause": "paused", "resume": "resumed", "retry": "retried",
    "terminate": "terminated", "cancel": "canceled", "move": "moved",
}  # fmt: skip
_REFUSED: Final = Columns(("instance", "code", "why"), drops=("code",))


def one_or_all(action: Action) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options for one instance, as `instance_named`, or all with a status or labels.

    Apply it below `service_options`, whose client the command receives.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        one = instance_named(command)

        @click.option("--status", type=click.Choice(STATUSES),
                      help="With -w: all instances with this status.")  # fmt: skip
        @label_option("With -w: all instances with this label; repeatable.")
        @click.option("--dry-run", is_flag=True, help="With --status or --label: only list them.")
        @yes_option
        @functools.wraps(one)
        def chosen(
            *,
            status: str | None,
            labels: dict[str, str],
            dry_run: bool,
            yes: bool,
            **values: Any,  # noqa: ANN401 (the command's own parameters)
        ) -> Result:
            if status is None and not labels:
                if action is MOVE:
                    values["dry_run"] = dry_run
                elif dry_run:
                    raise click.UsageError("--dry-run needs --status or --label")
                result: Result = one(**values)
                return result
            workflow, client = values.pop("workflow"), values.pop("client")
            changes: dict[str, Any] = {"status": status, "labels": labels}
            if "reason" in action.arguments:
                changes["reason"] = values.pop("reason") or ""
            if "deployment" in action.arguments:
                changes["deployment"] = values.pop("deployment")
            if action is MOVE:
                changes |= {name: values.pop(name) for name in ("force", "reason")}
                check_forced(changes["reason"], force=changes["force"])
            if workflow is None or any(values.values()):
                raise click.UsageError(
                    "expected -w WORKFLOW with --status or --label, and no option of a single "
                    "instance"
                )
            order = _BulkChange(client, workflow, action, changes)
            return order.carry_out(dry_run=dry_run, yes=yes)

        return chosen

    return decorate


class _BulkChange(PagedOrder):
    nouns = ("instance", "instances")

    def __init__(
        self, client: "SyncClient", workflow: str, action: Action, changes: dict[str, Any]
    ) -> None:
        self.name, self.done = action.name, _DONE[action.name]
        self._client = client
        self._workflow = workflow
        self._changes = changes
        #: Why runs were not replayed before their move.
        self._not_replayed: str | None = None

    @override
    def pages(self, *, dry_run: bool) -> "Iterator[tuple[Sequence[BulkChanged], bool]]":
        workflow = self._client.workflow(self._workflow)
        pages = workflow.change_all(self.name, dry_run=dry_run, **self._changes)
        for page in self._client.iterate(pages):
            self._not_replayed = page.not_replayed or self._not_replayed
            yield page.instances, page.has_next_page

    @override
    def effect(self, state: Operation) -> str:
        refused = f" {state['refused']} would be refused." if state["refused"] else ""
        return f"{super().effect(state)}{refused}{self._replay_note()}"

    @override
    def summary(self, state: Operation) -> str:
        return f"{super().summary(state)}{self._replay_note()}"

    def _replay_note(self) -> str:
        return f" Not replayed: {self._not_replayed}." if self._not_replayed else ""

    @override
    def is_refused(self, row: "BulkChanged") -> bool:
        return row.code is not None

    @override
    def answer(self, state: Operation) -> object:
        return state["rows"]

    @override
    def tables(self, state: Operation) -> "Sequence[Table]":
        rows = [
            {"instance": f"{self._workflow}/{row.id}", "status": row.status, "code": row.code,
             "why": row.detail}
            for row in state["rows"]
        ]  # fmt: skip
        refused = [row for row in rows if row["code"] is not None]
        tables = [_REFUSED.table(refused)] if refused else []
        if state["dry_run"]:
            matched = [row for row in rows if row["code"] is None]
            tables.insert(0, _MATCHED.table(matched))
        return tables


# -- commands

_JSON_HELP: Final = "JSON, @FILE, or - for standard input"


@click.command(
    "create",
    epilog=examples(
        'headwater instances create -w order --params \'{"sku": "x"}\'',
        "headwater instances create -w order -i order-1 --params @params.json",
        "headwater instances create -w order --label team=blue --label region=eu",
        'echo \'{"sku": "x"}\' | headwater instances create -w order --params -',
        "id=$(headwater instances create -w order)      only the id goes to standard output",
    )
    + ENVIRONMENT,
)
@workflow_option
@click.option(
    "-i", "--id", "instance_id", metavar="ID", help="Id of the instance. Default: a new one."
)
@click.option("--params", type=JsonArgument(), help=f"Its params: {_JSON_HELP}.")
@label_option("A label, for listing and bulk changes; repeatable.")
@prints
@service_options
def create(
    client: "SyncClient",
    *,
    workflow: str,
    instance_id: str | None,
    params: JsonValue | None,
    labels: dict[str, str],
) -> Result:
    """Create an instance, and print its id.

    Ids are unique in a workflow: `headwater instances restart` runs an existing instance again.
    """
    value = params.value if params else None
    created_id = client.run(client.workflow(workflow).create(instance_id, value, labels=labels)).id
    note = f"Created; `headwater instances get {workflow}/{created_id}` shows its status."
    answer = {"workflowName": workflow, "id": created_id}
    return Result(answer=answer, text=f"{created_id}\n", hints=[note])


_ARGUMENTS: Final = {
    "reason": click.option(
        "--reason", "reason", help="Reason, for people; it is in the instance's error."
    ),
    "deployment": click.option(
        "--deployment",
        "deployment",
        metavar="WHERE",
        help="Where the new run begins: same, active, app, or the id of a deployment. Default: "
        "retry stays on the same, restart begins on the active one if that has the workflow.",
    ),
    "fromStep": click.option(
        "--from-step",
        "fromStep",
        metavar="KEY",
        help="The first step that is executed again, as `headwater instances history` shows it. "
        "Default: the one that failed.",
    ),
}


def _lifecycle_command(action: Action) -> click.Command:
    """Return the command of a lifecycle action on an instance."""

    @click.command(
        action.name,
        help=f"{action.summary}.\n\n{action.effect}",
        epilog=examples(*_action_examples(action)) + ENVIRONMENT,
    )
    @prints
    @service_options
    @(one_or_all(action) if action.bulk else instance_named)
    def perform(client: "SyncClient", *, instance: InstanceName, **arguments: str | None) -> Result:
        texts = {name: text for name, text in arguments.items() if text is not None}
        status = client.run(instance.handle(client).perform(action, texts))
        text = _status_text(action, status, texts)
        return Result(answer=status, hints=[f"{instance} {text}."])

    command: click.Command = perform
    for name in action.arguments:
        command = _ARGUMENTS[name](command)
    return command


def _action_examples(action: Action) -> list[str]:
    single = f"headwater instances {action.name} order/order-1"
    several = f"headwater instances {action.name} -w order --label team=blue --dry-run"
    from_step = f"{single} --from-step charge"
    active = f"{single} --deployment active"
    retries = [from_step, active] if action is RETRY else []
    return [single, *retries, *([several] if action.bulk else [])]


def _status_text(action: Action, status: "InstanceStatus", arguments: "Mapping[str, str]") -> str:
    """Return the status after an action as text, with what may be unexpected about it."""
    if action is RETRY:
        where = f"from {arguments.get('fromStep', 'where it failed')}"
        return f"continues in a new run, {where}"
    if action.begins_run:
        return "begins a new run"
    if action is RESUME and status.ended:
        # Resuming an instance that is not paused changes nothing; the text must not imply it did.
        again = "`headwater instances restart` begins a new run of it"
        return f"is {status.status}: nothing to resume; {again}"
    stopped = action is PAUSE and status.status is RunStatus.PAUSED
    ends = "; a step that is running still completes" if stopped else ""
    if action is CANCEL and not status.ended:
        ends = "; its code may clean up"
    return f"is {status.status}{ends}"


@click.command(
    "move",
    help=f"{MOVE.summary}.\n\n{MOVE.effect}\n\nBefore, the history of the run is replayed against "
    "the code of the deployment; a run that does not fit is refused, with the first difference, "
    "unless the move is forced. What --app has is not replayed.",
    epilog=examples(
        "headwater instances move order/order-1 --to dep_5d41402abc4b2a76b971 --dry-run",
        "headwater instances move order/order-1 --to active",
        "headwater instances move -w order --status waiting --to dep_5d41402abc4b2a76b971",
        'headwater instances move order/order-1 --to active --force --reason "step removed"',
    )
    + ENVIRONMENT,
)
@click.option(
    "--to",
    "deployment",
    required=True,
    metavar="WHERE",
    help="Where it continues: active, app, or the id of a deployment.",
)
@force_options
@prints
@service_options
@one_or_all(MOVE)
def move(
    client: "SyncClient",
    *,
    instance: InstanceName,
    deployment: str,
    force: bool,
    reason: str,
    dry_run: bool = False,
) -> Result:
    """Move a run to other code."""
    check_forced(reason, force=force)
    moving = instance.handle(client).move(deployment, dry_run=dry_run, force=force, reason=reason)
    status = client.run(moving)
    done = "would be" if dry_run else "was"
    hints = [f"{instance} {done} moved to {deployment}."]
    if deployment == APP.name:
        hints.insert(
            0, f"{instance} was not replayed: the gateway does not have the code of --app."
        )
    return Result(answer=status, hints=hints)


@click.command(
    "send-event",
    epilog=examples(
        "headwater instances send-event order/order-1 --type approval",
        "headwater instances send-event order/order-1 --type approval \\",
        "    --payload '{\"approved\": true}'",
        "headwater instances send-event order/order-1 --type line --payload @line.json \\",
        '    --start-if-missing --params \'{"sku": "x"}\'',
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--type", "event_type", required=True, metavar="TYPE", help="Type of the event.")
@click.option("--payload", type=JsonArgument(), help=f"Its payload: {_JSON_HELP}.")
@click.option("--start-if-missing", is_flag=True, help="Create the instance if there is none.")
@click.option(
    "--params",
    type=JsonArgument(),
    help=f"With --start-if-missing: the params of the instance: {_JSON_HELP}.",
)
@prints
@service_options
def send_event(
    client: "SyncClient",
    *,
    instance: InstanceName,
    event_type: str,
    payload: JsonValue | None,
    start_if_missing: bool,
    params: JsonValue | None,
) -> Result:
    """Send an event to an instance, which keeps it until a step waits for that type.

    An instance accepts events while it is active, waiting or paused, but not after it has ended.
    """
    if params and not start_if_missing:
        raise click.UsageError("--params needs --start-if-missing")
    start: bool | Mapping[str, Any] = {"params": params.value} if params else start_if_missing

    value = payload.value if payload else None
    status = client.run(
        instance.handle(client).send_event(event_type, value, start_if_missing=start)
    )
    return Result(answer=status, hints=[f"{instance} has received the event {event_type}."])


@click.command(
    "set-branch-output",
    epilog=examples(
        "headwater instances set-branch-output review/r-1 --group judges --branch 2 \\",
        '    --output \'{"vote": {"by": "amara"}}\'',
        "headwater instances retry review/r-1",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--group", required=True, help="Sibling group of the fork.")
@click.option("--branch", required=True, type=click.IntRange(0), help="The branch, from 0.")
@click.option(
    "--output", required=True, type=JsonArgument(), help=f"All of its output: {_JSON_HELP}."
)
@click.option("--fork", help="The fork, if several forks of the group wait.")
@prints
@service_options
def set_branch_output(
    client: "SyncClient",
    *,
    instance: InstanceName,
    group: str,
    branch: int,
    output: JsonValue,
    fork: str | None,
) -> Result:
    """Set the output of a branch of an errored graph, of which the outputs could not be merged.

    A retry merges them again; it runs no node for that.
    """
    handle = instance.handle(client)
    status = client.run(handle.set_branch_output(group, branch, output.value, fork=fork))
    hints = [
        f"Branch {branch} of {group} has its new output; `headwater instances retry` merges it."
    ]
    return Result(answer=status, hints=hints)


CHANGE_COMMANDS: Final = (
    create,
    *map(_lifecycle_command, ACTIONS),
    move,
    send_event,
    set_branch_output,
)
