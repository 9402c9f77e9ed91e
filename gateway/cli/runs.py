"""`headwater runs`: create runs once per idempotency key, show and cancel them, by id alone."""

from typing import TYPE_CHECKING, Final

import click

from headwater.gateway.cli.api import now
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    JsonArgument,
    JsonValue,
    collect_pages,
    cursor_option,
    examples,
    limit_option,
)
from headwater.gateway.cli.results import Columns, Result, fields, listing, prints
from headwater.gateway.cli.workflow_service import ENVIRONMENT, service_options
from headwater.gateway.client.texts import absolute_and_relative, moment
from headwater.schemas.statuses import RunState

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.v1_answers import Run, RunListed

_LISTED: Final = Columns(
    ("run", "workflow", "status", "deployment", "created", "ended", "error"),
    drops=("deployment", "error", "ended"),
)
_STATES: Final = [state.value for state in RunState]
#: Largest page of the service.
_PAGE_MAX: Final = 1_000


def _checked_run(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("expected the id of a run, found nothing")
    return value


def checked_key(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Check an idempotency key."""
    from headwater.gateway.client.requests import idempotency_key  # noqa: PLC0415 (loads slowly)

    try:
        return None if value is None else idempotency_key(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_RUN: Final = click.argument("run_id", metavar="RUN", callback=_checked_run)
_WORKFLOW: Final = click.option(
    "-w", "--workflow", metavar="NAME", help="Its workflow, if several have a run of this id."
)


@click.group(
    cls=Group,
    epilog=examples(
        'headwater runs create order --input \'{"sku": "x"}\' --idempotency-key order-17',
        "headwater runs list --status failed",
        "headwater runs show RUN",
        "headwater runs cancel RUN --reason 'no longer needed'",
    )
    + ENVIRONMENT,
)
def runs() -> None:
    """Create runs once per idempotency key, show and cancel them.

    `headwater instances` has further commands.
    """


@runs.command(
    epilog=examples(
        'headwater runs create order --input \'{"sku": "x"}\'',
        "headwater runs create order --idempotency-key order-17      once, for a day",
        "headwater runs create order --deployment dep_3f9c1b7a52e84d60c1aa",
        "id=$(headwater runs create order)      only the id goes to standard output",
    )
    + ENVIRONMENT
)
@click.argument("workflow")
@click.option(
    "--input", "input_", type=JsonArgument(), help="JSON, @FILE, or - for standard input."
)
@click.option("--deployment", metavar="ID", help="Deployment to run on. Default: the active one.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    callback=checked_key,
    help="Within a day, the same key returns the same run.",
)
@prints
@service_options
def create(
    client: "SyncClient",
    workflow: str,
    input_: JsonValue | None,
    deployment: str | None,
    idempotency_key: str | None,
) -> Result:
    """Create a run, and print its id."""
    value = input_.value if input_ else None
    run = client.run(
        client.runs.create(workflow, value, deployment=deployment, key=idempotency_key)
    )
    note = f"Created; `headwater runs show {run.run_id}` shows its status."
    return Result(answer=run, text=f"{run.run_id}\n", hints=[note])


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
@click.option("--status", type=click.Choice(_STATES), help="Only runs with this status.")
@click.option("--deployment", metavar="ID", help="Only runs on this deployment.")
@limit_option(100_000)
@cursor_option
@prints
@service_options
def list_runs(
    client: "SyncClient",
    *,
    workflow: str | None,
    status: str | None,
    deployment: str | None,
    limit: int,
    cursor: str | None,
) -> Result:
    """List runs, newest first."""

    def page(limit: int, after: str | None) -> "tuple[list[RunListed], str | None]":
        answer = client.run(
            client.runs.page(
                status=status, workflow=workflow, deployment=deployment, limit=limit, cursor=after
            )
        )
        return answer.data, answer.cursor

    listed, more = collect_pages(page, limit=limit, page_size=_PAGE_MAX, cursor=cursor)
    return listing(
        listed, _LISTED.table(map(_row, listed)), none="There are no such runs.", more=more
    )


@runs.command(epilog=examples("headwater runs show RUN", "headwater runs show RUN --json"))
@_RUN
@_WORKFLOW
@prints
@service_options
def show(client: "SyncClient", run_id: str, workflow: str | None) -> Result:
    """Show a run."""
    return _shown(client.run(client.runs.get(run_id, workflow=workflow)))


@runs.command(
    epilog=examples("headwater runs cancel RUN", "headwater runs cancel RUN --reason 'too late'")
)
@_RUN
@_WORKFLOW
@click.option("--reason", default="", help="Reason, for people; it is in the run's error.")
@prints
@service_options
def cancel(client: "SyncClient", run_id: str, workflow: str | None, reason: str) -> Result:
    """Cancel a run. Its code may clean up, so its status may change later."""
    return _shown(client.run(client.runs.cancel(run_id, reason, workflow=workflow)))


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


def _shown(run: "Run") -> Result:
    values = _row(run) | {
        "created": absolute_and_relative(run.created_at, now()),
        "started": absolute_and_relative(run.started_at, now()),
        "ended": absolute_and_relative(run.completed_at, now()) if run.completed_at else None,
        "input": run.input,
        "output": run.output,
    }
    present = fields((name, value) for name, value in values.items() if value is not None)
    return Result(answer=run, tables=[present])
