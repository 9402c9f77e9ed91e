"""`headwater instances …`: create and change instances, one or many; send events to them."""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.cli.options import JsonArgument, JsonValue, examples, json_option
from headwater.gateway.cli.output import counted, print_answer, print_json, print_rows, say
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    Service,
    instance_named,
    label_option,
    service_options,
    workflow_option,
)
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.lifecycle import ACTIONS, CANCEL, PAUSE, RESUME, Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.gateway.client.client import Client
    from headwater.schemas.answers import BulkChanged, InstanceStatus


STATUSES: Final = [status.value for status in RunStatus]


def one_or_all(action: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add options for one instance, as `instance_named`, or all with a status or labels.

    Apply it below `service_options`, whose service the command receives.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        one = instance_named(command)

        @click.option("--status", type=click.Choice(STATUSES),
                      help="With -w: all instances with this status.")  # fmt: skip
        @label_option("With -w: all instances with this label; repeatable.")
        @click.option("--dry-run", is_flag=True, help="With --status or --label: only list them.")
        @functools.wraps(one)
        def chosen(
            *,
            status: str | None,
            labels: dict[str, str],
            dry_run: bool,
            **values: Any,  # noqa: ANN401 (the command's own parameters)
        ) -> None:
            if status is None and not labels:
                if dry_run:
                    raise click.UsageError("--dry-run needs --status or --label")
                one(**values)
                return
            workflow = values.pop("workflow")
            service = values.pop("service")
            as_json = values.pop("as_json")
            reason = values.pop("reason", "")
            if workflow is None or any(values.values()):
                raise click.UsageError(
                    "expected -w WORKFLOW with --status or --label, and no option of a single "
                    "instance"
                )
            changes = {"status": status, "labels": labels, "dry_run": dry_run, "reason": reason}
            _change(service, action, workflow, changes, as_json=as_json)

        return chosen

    return decorate


def _change(
    service: Service, action: str, workflow: str, changes: dict[str, Any], *, as_json: bool
) -> None:
    """Change the instances, printing progress by page, and show those that refused."""

    async def change(client: "Client") -> "list[BulkChanged]":
        changed: list[BulkChanged] = []
        pages = client.workflow(workflow).change_all(action, **changes)
        async for page in pages:
            changed += page.instances
            if page.has_next_page:
                say(f"{action}: {_count(changed)} so far")
        return changed

    results = service.ask(change)
    if as_json:
        print_answer(results)
    if changes["dry_run"]:
        rows = [_named(workflow, result) | {"status": result.status} for result in results]
        if not as_json:
            print_rows(rows, ("instance", "status"))
        say(f"{action} would change {counted(len(results), 'instance')}; nothing was changed.")
        return
    refused = [result for result in results if result.code]
    rows = [
        _named(workflow, result) | {"code": result.code, "why": result.detail} for result in refused
    ]
    if rows and not as_json:
        print_rows(rows, ("instance", "code", "why"), drops=("code",))
    say(f"{action}: {_count(results)}.")
    if refused:
        raise click.exceptions.Exit(1)


def _named(workflow: str, result: "BulkChanged") -> dict[str, str | None]:
    return {"instance": f"{workflow}/{result.id}"}


def _count(results: "list[BulkChanged]") -> str:
    refused = sum(result.code is not None for result in results)
    return f"{len(results) - refused} done" + (f", {refused} refused" if refused else "")


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
@json_option
@service_options
def create(
    service: Service,
    *,
    workflow: str,
    instance_id: str | None,
    params: JsonValue | None,
    labels: dict[str, str],
    as_json: bool,
) -> None:
    """Create an instance, and print its id.

    Ids are unique in a workflow: `headwater instances restart` runs an existing instance again.
    """
    value = params.value if params else None
    created_id = service.ask(
        lambda client: client.workflow(workflow).create(instance_id, value, labels=labels)
    ).id
    if as_json:
        print_json({"workflowName": workflow, "id": created_id})
    else:
        sys.stdout.write(f"{created_id}\n")
    say(f"Created; `headwater instances get {workflow}/{created_id}` shows its status.")


def _lifecycle_command(verb: Action) -> click.Command:
    """Return the command of a lifecycle action on an instance."""

    @click.command(
        verb.name,
        help=f"{verb.summary}.\n\n{verb.effect}",
        epilog=examples(*_action_examples(verb)) + ENVIRONMENT,
    )
    @service_options
    @(one_or_all(verb.name) if verb.repeatable else instance_named)
    @json_option
    def steer(service: Service, *, instance: InstanceName, as_json: bool, reason: str = "") -> None:
        status = service.ask(lambda client: instance.handle(client).perform(verb, reason))
        if as_json:
            print_answer(status)
        say(f"{instance} {_status_text(verb, status)}.")

    if verb.takes_reason:
        why = "Reason, for people; it is in the instance's error."
        return click.option("--reason", default="", help=why)(steer)
    return steer


def _action_examples(verb: Action) -> list[str]:
    single = f"headwater instances {verb.name} order/order-1"
    several = f"headwater instances {verb.name} -w order --label team=blue --dry-run"
    return [single, several] if verb.repeatable else [single]


def _status_text(verb: Action, status: "InstanceStatus") -> str:
    """Return the status after an action as text, with what may be unexpected about it."""
    if verb.begins_run:
        return "begins a new run"
    if verb is RESUME and status.ended:
        # Resuming an instance that is not paused changes nothing; the text must not imply it did.
        again = "`headwater instances restart` begins a new run of it"
        return f"is {status.status}: nothing to resume; {again}"
    stopped = verb is PAUSE and status.status is RunStatus.PAUSED
    ends = "; a step that is running still completes" if stopped else ""
    if verb is CANCEL and not status.ended:
        ends = "; its code may clean up"
    return f"is {status.status}{ends}"


@click.command(
    "retry",
    epilog=examples(
        "headwater instances retry order/order-1",
        "headwater instances retry order/order-1 --from-step charge",
        "headwater instances retry -w order --status errored       all of them",
    )
    + ENVIRONMENT,
)
@service_options
@one_or_all("retry")
@click.option(
    "--from-step",
    metavar="KEY",
    help="The first step that is executed again. Default: the one that failed.",
)
@json_option
def retry(
    service: Service, *, instance: InstanceName, from_step: str | None, as_json: bool
) -> None:
    """Retry an errored instance in a new run.

    The run keeps completed steps and received events.

    `headwater instances history` shows the keys of steps. To execute everything again: `restart`.
    """
    status = service.ask(lambda client: instance.handle(client).retry(from_step))
    if as_json:
        print_answer(status)
    where = f"from {from_step}" if from_step else "from where it failed"
    say(f"{instance} continues in a new run, {where}.")


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
@json_option
@service_options
def send_event(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    instance: InstanceName,
    event_type: str,
    payload: JsonValue | None,
    start_if_missing: bool,
    params: JsonValue | None,
    as_json: bool,
) -> None:
    """Send an event to an instance, which keeps it until a step waits for that type.

    An instance accepts events while it is active, waiting or paused, but not after it has ended.
    """
    if params and not start_if_missing:
        raise click.UsageError("--params needs --start-if-missing")
    start: bool | Mapping[str, Any] = {"params": params.value} if params else start_if_missing

    value = payload.value if payload else None
    status = service.ask(
        lambda client: instance.handle(client).send_event(event_type, value, start_if_missing=start)
    )
    if as_json:
        print_answer(status)
    say(f"{instance} has received the event {event_type}.")


CHANGE_COMMANDS: Final = (create, *map(_lifecycle_command, ACTIONS), retry, send_event)
