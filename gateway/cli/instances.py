"""`headwater instances`: list and show instances of workflows."""

from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.cli.api import now
from headwater.gateway.cli.instance_changes import CHANGE_COMMANDS, STATUSES
from headwater.gateway.cli.instance_formatting import (
    LEVEL_STYLES,
    STATE_STYLES,
    STATUS_STYLES,
    TOKENS,
    event_rows,
    listed_rows,
    log_row,
    step_rows,
    summary,
    token_rows,
)
from headwater.gateway.cli.instance_inspect import INSPECT_COMMANDS
from headwater.gateway.cli.instance_logs import log_options, show_logs
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import collect_pages, cursor_option, examples, limit_option
from headwater.gateway.cli.output import longest_shown
from headwater.gateway.cli.results import Columns, Result, fields, listing, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    label_option,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.answers import InstanceFound

_LISTED: Final = Columns(
    ("instance", "status", "age", "updated", "deployment", "what"),
    drops=("deployment", "updated", "age"),
    styles={"status": STATUS_STYLES},
)
_STEPS: Final = Columns(
    ("began", "state", "step", "type", "attempts", "took", "what"),
    drops=("attempts", "began", "type", "took"),
    styles={"state": STATE_STYLES},
)
#: The message comes last, where it may take several lines.
_LOGS: Final = Columns(
    ("at", "level", "category", "step", "data", "message"),
    drops=("data", "category", "step"),
    styles={"level": LEVEL_STYLES},
)
_EVENTS: Final = Columns(("at", "type", "consumed by", "payload"), drops=("consumed by", "at"))
#: Largest page of the service.
_PAGE_MAX: Final = 100


@click.group(
    cls=Group,
    epilog=examples(
        "headwater instances list --status errored         of all workflows",
        "headwater instances get order/order-1             status and current step",
        "headwater instances history order/order-1         what happened",
        "headwater instances logs order/order-1 --follow   what it logs",
        'headwater instances create -w order --params \'{"sku": "x"}\'',
        "headwater instances send-event order/order-1 --type approval",
        "headwater instances retry order/order-1           continue after an error",
        "headwater instances explain review/review-1       why a graph waits",
    )
    + ENVIRONMENT,
)
def instances() -> None:
    """Show instances of workflows, create and control them, send events to them.

    Everything goes over HTTP. An instance is named by its workflow and its id; its runs are
    numbered from 0, and a restart or retry begins the next.
    """


@instances.command(
    "list",
    epilog=examples(
        "headwater instances list                              of all workflows",
        "headwater instances list --status errored",
        "headwater instances list -w order --status waiting --limit 200",
        "headwater instances list -w order --label team=blue",
        "headwater instances list -w order --status errored --updated-since 2026-07-01T00:00:00Z",
        "headwater instances list -w order --cursor CURSOR      the next page",
    )
    + ENVIRONMENT,
)
@click.option("-w", "--workflow", metavar="NAME", help="Only those of this workflow.")
@click.option("--status", type=click.Choice(STATUSES), help="Only those with this status.")
@label_option("Only those with this label; repeatable.")
@click.option("--updated-since", metavar="TIME",
              help="Only those updated at or after this time; RFC 3339.")  # fmt: skip
@click.option("--updated-before", metavar="TIME",
              help="Only those last updated before this time; RFC 3339.")  # fmt: skip
@limit_option(100_000)
@click.option("--page-size", type=click.IntRange(1, _PAGE_MAX), default=_PAGE_MAX,
              show_default=True, help="Rows of a request.")  # fmt: skip
@cursor_option
@prints
@service_options
def list_instances(
    client: "SyncClient",
    *,
    workflow: str | None,
    limit: int,
    page_size: int,
    cursor: str | None,
    **filters: Any,  # noqa: ANN401 (those of the client)
) -> Result:
    """List instances, of one workflow or of all, newest first.

    Shows of every instance its name, status and age, its last update, and what it waits for, or its
    error or output if it has ended.
    """

    def page(size: int, after: str | None) -> "tuple[list[InstanceFound], str | None]":
        answer = client.run(
            (client.workflow(workflow) if workflow else client).page(
                page_size=size, cursor=after, **filters
            )
        )
        return answer.instances, answer.cursor if answer.has_next_page else None

    listed, more = collect_pages(page, limit=limit, page_size=page_size, cursor=cursor)
    table = _LISTED.table(listed_rows(listed, now(), longest_shown()))
    of_workflow = f" of {workflow}" if workflow else ""
    with_status = f" that are {filters['status']}" if filters["status"] else ""
    none = f"There are no instances{of_workflow}{with_status}."
    return listing(listed, table, none=none, more=more)


@instances.command(
    "get",
    epilog=examples(
        "headwater instances get order/order-1",
        "headwater instances get order/order-1 --full      with params and output",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--full", is_flag=True, help="Show all fields, also params and output.")
@prints
@service_options
def get_instance(client: "SyncClient", *, instance: InstanceName, full: bool) -> Result:
    """Show the current state of an instance.

    Its status, its current step and what that waits for, its error, and its last update.
    """
    described = client.run(instance.handle(client).describe())
    present = fields(summary(described, now(), full=full).items(), styles=STATUS_STYLES)
    return Result(answer=described, tables=[present])


@instances.command(
    "history",
    epilog=examples(
        "headwater instances history order/order-1",
        "headwater instances history order/order-1 --run 0 --include-logs",
        "headwater instances history order/order-1 --include-logs --log-level error",
        "headwater instances history order/order-1 --full     full results and payloads",
        "headwater instances history poll/p-1 --include-trimmed    all iterations of its loops",
    )
    + ENVIRONMENT,
)
@instance_named
@log_options
@click.option("--include-logs", is_flag=True, help="Also show log lines of the run.")
@click.option("--include-trimmed", is_flag=True,
              help="Also show trimmed iterations of loops; read from the log.")  # fmt: skip
@click.option("--full", is_flag=True, help="Show results and payloads in full.")
@prints
@service_options
def show_history(  # noqa: PLR0913 (one parameter a flag; click names them)
    client: "SyncClient",
    *,
    instance: InstanceName,
    run: int | None,
    log_level: str | None,
    log_category: str | None,
    include_logs: bool,
    include_trimmed: bool,
    full: bool,
) -> Result:
    """Show what happened in a run, step by step.

    Shows its steps in order (of a graph its tokens), the events it received and, if requested, its
    log lines. Of every step: when it began, counted from the first; its state, attempts and
    duration; and what it waits for, its error or its result.
    """
    if (log_level or log_category) and not include_logs:
        raise click.UsageError("--log-level and --log-category need --include-logs")

    history = client.run(
        instance.handle(client).history(
            run, include_trimmed=include_trimmed, include_logs=include_logs,
            log_level=log_level, log_category=log_category,
        )
    )  # fmt: skip
    longest, title = longest_shown(full=full), f"{instance}, run {history.run_number}"
    if history.tokens:
        rows = token_rows(history.tokens, now(), longest, frames=full)
        tables = [TOKENS.table(rows, title)]
    else:
        tables = [_STEPS.table(step_rows(history.steps, now(), longest, frames=full), title)]
    if history.events:
        tables.append(_EVENTS.table(event_rows(history.events, longest), "events"))
    if include_logs:
        tables.append(_LOGS.table(map(log_row, history.logs), "logs"))
    return Result(answer=history, tables=tables)


instances.add_on_demand("operations:prune", "export_tests:export_test")
for _command in (show_logs, *CHANGE_COMMANDS, *INSPECT_COMMANDS):
    instances.add_command(_command)
