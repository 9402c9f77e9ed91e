"""`headwater runs`: runs by their ids alone, created once under a key, shown and cancelled."""

import sys
from typing import TYPE_CHECKING, Final

import click

from headwater.gateway.commands.json_arguments import Given, JsonArgument
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_answer, print_fields, print_rows, say
from headwater.gateway.commands.paging import cursor_option, gathered, limit_option, say_rest
from headwater.gateway.commands.times import both, moment
from headwater.gateway.commands.workflow_service import ENVIRONMENT, Service, service_options
from headwater.schemas.statuses import RunState

if TYPE_CHECKING:
    from headwater.gateway.client import Client
    from headwater.schemas.run_answers import Run, RunListed

_COLUMNS: Final = ("run", "workflow", "status", "deployment", "created", "ended", "error")
_DROPS: Final = ("deployment", "error", "ended")
_STATES: Final = [state.value for state in RunState]
#: As many as the service gives at once.
_PAGE_MAX: Final = 1_000


def _some_run(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("expected the id of a run, found nothing")
    return value


def _some_key(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    from headwater.gateway.client.requests import idempotency_key  # noqa: PLC0415 (loads slowly)

    try:
        return None if value is None else idempotency_key(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_RUN: Final = click.argument("run_id", metavar="RUN", callback=_some_run)
_WORKFLOW: Final = click.option(
    "-w", "--workflow", metavar="NAME", help="Its workflow, where several have a run of this id."
)


@click.group(
    cls=Group,
    epilog=examples(
        'headwater runs create order --input \'{"sku": "x"}\' --idempotency-key order-17',
        "headwater runs list --status failed",
        "headwater runs show RUN",
        "headwater runs cancel RUN --reason 'no longer wanted'",
    )
    + ENVIRONMENT,
)
def runs() -> None:
    """Create runs once under a key, see and cancel them.

    What else is done with them: `headwater instances`.
    """


@runs.command(
    epilog=examples(
        'headwater runs create order --input \'{"sku": "x"}\'',
        "headwater runs create order --idempotency-key order-17      once, for a day",
        "headwater runs create order --deployment dep_3f9c1b7a52e84d60c1aa",
        "id=$(headwater runs create order)      the id alone goes to standard output",
    )
    + ENVIRONMENT
)
@click.argument("workflow")
@click.option("--input", "given", type=JsonArgument(), help="JSON, @FILE, or - for standard input.")
@click.option("--deployment", metavar="ID", help="What it runs on. Default: the active one.")
@click.option(
    "--idempotency-key",
    "once",
    metavar="KEY",
    callback=_some_key,
    help="What is created again under it, within a day, is the same run.",
)
@json_option
@service_options
def create(
    service: Service,
    workflow: str,
    given: Given | None,
    deployment: str | None,
    once: str | None,
    as_json: bool,
) -> None:
    """Create a run, and print its id."""
    value = given.value if given else None
    made = service.ask(
        lambda client: client.runs.create(workflow, value, deployment=deployment, key=once)
    )
    if as_json:
        print_answer(made)
    else:
        sys.stdout.write(f"{made.run_id}\n")
    say(f"Created; `headwater runs show {made.run_id}` shows how it stands.")


@runs.command(
    "list",
    epilog=examples(
        "headwater runs list",
        "headwater runs list -w order --status running --limit 200",
        "headwater runs list --deployment dep_3f9c1b7a52e84d60c1aa",
        "headwater runs list --cursor CURSOR      the next page",
    )
    + ENVIRONMENT,
)
@click.option("-w", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--status", type=click.Choice(_STATES), help="Only runs that stand so.")
@click.option("--deployment", metavar="ID", help="Only runs on this deployment.")
@limit_option(100_000)
@cursor_option
@json_option
@service_options
def list_runs(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    workflow: str | None,
    status: str | None,
    deployment: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List runs, the newest first."""

    async def ask(client: "Client") -> "tuple[list[RunListed], str | None]":
        async def page(limit: int, after: str | None) -> "tuple[list[RunListed], str | None]":
            found = await client.runs.page(
                status=status, workflow=workflow, deployment=deployment, limit=limit, cursor=after
            )
            return found.data, found.cursor

        return await gathered(page, limit=limit, page_size=_PAGE_MAX, cursor=cursor)

    found, more = service.ask(ask)
    if as_json:
        print_answer(found)
    else:
        print_rows([_row(each) for each in found], _COLUMNS, drops=_DROPS)
    say_rest(found, more, none="There are no such runs.")


@runs.command(epilog=examples("headwater runs show RUN", "headwater runs show RUN --json"))
@_RUN
@_WORKFLOW
@json_option
@service_options
def show(service: Service, run_id: str, workflow: str | None, as_json: bool) -> None:
    """Show a run, whole."""
    _print(service, service.ask(lambda client: client.runs.get(run_id, workflow=workflow)), as_json)


@runs.command(
    epilog=examples("headwater runs cancel RUN", "headwater runs cancel RUN --reason 'too late'")
)
@_RUN
@_WORKFLOW
@click.option("--reason", default="", help="Why, for people: its error says it.")
@json_option
@service_options
def cancel(service: Service, run_id: str, workflow: str | None, reason: str, as_json: bool) -> None:
    """Cancel a run: its code may clean up, so it may stand as before for a while."""
    found = service.ask(lambda client: client.runs.cancel(run_id, reason, workflow=workflow))
    _print(service, found, as_json)


def _row(run: "RunListed") -> dict[str, object]:
    return {
        "run": run.run_id,
        "workflow": run.workflow_name,
        "status": run.status,
        "deployment": run.deployment_id,
        "created": moment(run.created_at),
        "ended": moment(run.completed_at) if run.completed_at else None,
        "error": f"{run.error.name}: {run.error.message}" if run.error else None,
    }


def _print(service: Service, run: "Run", as_json: bool) -> None:
    if as_json:
        print_answer(run)
        return
    now = service.now()
    fields = _row(run) | {
        "created": both(run.created_at, now),
        "started": both(run.started_at, now),
        "ended": both(run.completed_at, now) if run.completed_at else None,
        "input": run.input,
        "output": run.output,
    }
    print_fields((name, value) for name, value in fields.items() if value is not None)
