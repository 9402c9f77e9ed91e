"""`headwater instances …`: creating, steering and signalling instances of workflows."""

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.commands.bulk import one_or_all
from headwater.gateway.commands.json_arguments import Given, JsonArgument
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_answer, print_json, say
from headwater.gateway.commands.workflow_service import (
    ENVIRONMENT,
    Named,
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

    from headwater.schemas.answers import InstanceStatus

_JSON_HELP: Final = "JSON, @FILE, or - for standard input"


@click.command(
    "create",
    epilog=examples(
        'headwater instances create -w order --params \'{"sku": "x"}\'',
        "headwater instances create -w order -i order-1 --params @params.json",
        "headwater instances create -w order --label team=blue --label region=eu",
        'echo \'{"sku": "x"}\' | headwater instances create -w order --params -',
        "id=$(headwater instances create -w order)      the id alone goes to standard output",
    )
    + ENVIRONMENT,
)
@workflow_option
@click.option(
    "-i", "--id", "instance_id", metavar="ID", help="Id of the instance. Default: a new one."
)
@click.option("--params", type=JsonArgument(), help=f"What it starts with: {_JSON_HELP}.")
@label_option("A label by which it is found; several times for several.")
@json_option
@service_options
def create(
    service: Service,
    *,
    workflow: str,
    instance_id: str | None,
    params: Given | None,
    labels: dict[str, str],
    as_json: bool,
) -> None:
    """Create an instance, and print its id.

    An id is taken once in a workflow: `headwater instances restart` runs an instance again.
    """
    given = params.value if params else None
    made = service.ask(
        lambda client: client.workflow(workflow).create(instance_id, given, labels=labels)
    ).id
    if as_json:
        print_json({"workflowName": workflow, "id": made})
    else:
        sys.stdout.write(f"{made}\n")
    say(f"Created; `headwater instances get {workflow}/{made}` shows where it stands.")


def _steering(verb: Action) -> click.Command:
    """A command that does one thing to one instance, and says how it stands then."""

    @click.command(
        verb.name,
        help=f"{verb.summary}.\n\n{verb.effect}",
        epilog=examples(*_steered(verb)) + ENVIRONMENT,
    )
    @service_options
    @(one_or_all(verb.name) if verb.repeatable else instance_named)
    @json_option
    def steer(service: Service, *, instance: Named, as_json: bool, reason: str = "") -> None:
        found = service.ask(lambda client: instance.of(client).perform(verb, reason))
        if as_json:
            print_answer(found)
        say(f"{instance} {_stands(verb, found)}.")

    if verb.takes_reason:
        why = "Why, for people: its error says it."
        return click.option("--reason", default="", help=why)(steer)
    return steer


def _steered(verb: Action) -> list[str]:
    one = f"headwater instances {verb.name} order/order-1"
    all_ = f"headwater instances {verb.name} -w order --label team=blue --dry-run"
    return [one, all_] if verb.repeatable else [one]


def _stands(verb: Action, found: "InstanceStatus") -> str:
    """How an instance stands after a verb, and what somebody might not expect of it."""
    if verb.begins_run:
        return "begins a new run"
    if verb is RESUME and found.ended:
        # Who resumes what is not paused has changed nothing: its status must not sound like it.
        again = "`headwater instances restart` begins a new run of it"
        return f"is {found.status}: nothing to resume; {again}"
    stopped = verb is PAUSE and found.status is RunStatus.PAUSED
    ends = "; a step that is under way still ends" if stopped else ""
    if verb is CANCEL and not found.ended:
        ends = "; its code may clean up"
    return f"is {found.status}{ends}"


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
    help="The first step that is done again. Default: the one that failed.",
)
@json_option
def retry(service: Service, *, instance: Named, from_step: str | None, as_json: bool) -> None:
    """Let an errored instance go on in a new run.

    The run keeps the steps that are done, and the events that came.

    `headwater instances history` shows the keys of steps. To do everything again: `restart`.
    """
    found = service.ask(lambda client: instance.of(client).retry(from_step))
    if as_json:
        print_answer(found)
    where = f"from {from_step}" if from_step else "from where it failed"
    say(f"{instance} goes on in a new run, {where}.")


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
@click.option("--payload", type=JsonArgument(), help=f"What it says: {_JSON_HELP}.")
@click.option("--start-if-missing", is_flag=True, help="Create the instance if there is none.")
@click.option(
    "--params",
    type=JsonArgument(),
    help=f"With --start-if-missing: what the instance starts with: {_JSON_HELP}.",
)
@json_option
@service_options
def send_event(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    instance: Named,
    event_type: str,
    payload: Given | None,
    start_if_missing: bool,
    params: Given | None,
    as_json: bool,
) -> None:
    """Send an event to an instance, which keeps it until a step waits for that type.

    It takes events while it is active, waiting or paused, and none once it has ended.
    """
    if params and not start_if_missing:
        raise click.UsageError("--params takes --start-if-missing")
    start: bool | Mapping[str, Any] = {"params": params.value} if params else start_if_missing

    said = payload.value if payload else None
    found = service.ask(
        lambda client: instance.of(client).send_event(event_type, said, start_if_missing=start)
    )
    if as_json:
        print_answer(found)
    say(f"{instance} has the event {event_type}.")


CHANGES: Final = (create, *map(_steering, ACTIONS), retry, send_event)
