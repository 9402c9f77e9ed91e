"""`headwater jobs`: list jobs of graphs, and act as an external worker by hand."""

import socket
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

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
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.cli.workflow_service import ENVIRONMENT, service_options
from headwater.gateway.client.texts import absolute_and_relative
from headwater.processors.runs.durations import milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from headwater.gateway.client.jobs import TakenJob
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.answers import JobListed

_ACTIVATED: Final = Columns(
    ("key", "type", "instance", "node", "attempt", "lease until", "input"),
    drops=("lease until", "node", "attempt"),
)
_LISTED: Final = Columns(
    ("since", "type", "instance", "node", "token", "attempt", "status", "worker", "until"),
    drops=("token", "attempt", "node"),
)
#: Largest page of the service.
_PAGE_MAX: Final = 100


class _Duration(click.ParamType):
    """Parameter type of a duration; its value is milliseconds."""

    name = "DURATION"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return milliseconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _checked_key(_: click.Context, __: click.Parameter, key: str) -> str:
    if not key:
        raise click.UsageError("expected the key of a job, as it was activated with, found nothing")
    return key


_KEY: Final = click.argument("job", metavar="KEY", callback=_checked_key)
_LEASE: Final = click.option(
    "--lease", type=_Duration(), default="1 minute", show_default=True, help="How long you hold it."
)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater jobs list",
        "headwater jobs activate charge_card",
        'headwater jobs complete order.order-1.0.0.1 --output \'{"receipt": "paid"}\'',
    )
    + ENVIRONMENT,
)
def jobs() -> None:
    """List the jobs of graphs, activate them, and end them. See docs/graphs/jobs.md."""


@jobs.command(
    "list",
    epilog=examples(
        "headwater jobs list",
        "headwater jobs list --type charge_card --limit 200",
        "headwater jobs list --cursor CURSOR      the next page",
    )
    + ENVIRONMENT,
)
@click.option("--type", "task", metavar="TYPE", help="Only jobs of this task.")
@limit_option(100_000, "oldest")
@cursor_option
@prints
@service_options
def list_jobs(client: "SyncClient", task: str | None, limit: int, cursor: str | None) -> Result:
    """List open jobs and the workers that hold them.

    Waiting: for a worker. Taken: a worker holds it until its lease expires. Retrying: its next
    attempt is not due yet. Listing activates no job.
    """

    def page(size: int, after: str | None) -> "tuple[list[JobListed], str | None]":
        answer = client.run(client.jobs(task, page_size=size, cursor=after))
        return answer.jobs, answer.cursor

    listed, more = collect_pages(page, limit=limit, page_size=_PAGE_MAX, cursor=cursor)
    table = _LISTED.table(_listed(job, now()) for job in listed)
    none = f"There are no open jobs{f' of {task}' if task else ''}."
    return listing(listed, table, none=none, more=more)


@jobs.command(
    epilog=examples(
        "headwater jobs activate charge_card",
        "headwater jobs activate charge_card ship --max 5 --wait '20 seconds'",
        "headwater jobs activate charge_card --lease '10 minutes' --json | jq -r '.[].key'",
    )
    + ENVIRONMENT
)
@click.argument("types", nargs=-1, required=True, metavar="TYPE…")
@click.option("--worker", metavar="NAME", help="Your name. Default: the name of this machine.")
@click.option("--max", "most", type=click.IntRange(1, 100), default=1, show_default=True,
              help="Largest number of jobs.")  # fmt: skip
@_LEASE
@click.option(
    "--wait", type=_Duration(), default="0", help="How long to wait for a job: up to 55 s."
)
@prints
@service_options
def activate(
    client: "SyncClient",
    types: tuple[str, ...],
    worker: str | None,
    most: int,
    lease: int,
    wait: int,
) -> Result:
    """Activate jobs, those that have waited longest first.

    TYPE is the task of an external node. You hold a job until its lease expires; then another
    worker can activate it, which costs none of its retries.
    """
    name = worker or socket.gethostname()
    activated = client.run(
        client.activate_jobs(types, worker=name, max=most, lease=lease, wait=wait)
    )
    table = _ACTIVATED.table(_row(job, now()) for job in activated)
    hints = [] if activated else [f"No job of {', '.join(types)} waits for a worker."]
    return Result(answer=[job.details for job in activated], tables=[table], hints=hints)


@jobs.command(
    epilog=examples(
        "headwater jobs complete order.order-1.0.0.1",
        'headwater jobs complete order.order-1.0.0.1 --output \'{"receipt": "paid"}\'',
        "./charge | headwater jobs complete order.order-1.0.0.1 --output -",
    )
    + ENVIRONMENT
)
@_KEY
@click.option(
    "--output", type=JsonArgument(), help="Its output: JSON, @FILE, or - for standard input."
)
@prints
@service_options
def complete(client: "SyncClient", job: str, output: JsonValue | None) -> Result:
    """Complete a job with its output. Repeating it has no further effect."""
    value = output.value if output else None
    client.run(client.job(job).complete(value))
    return _reported(job, "is complete")


@jobs.command(
    epilog=examples(
        "headwater jobs fail order.order-1.0.0.1 --message 'no answer of the bank'",
        "headwater jobs fail order.order-1.0.0.1 --message 'try later' --retry-after '1 hour'",
        "headwater jobs fail order.order-1.0.0.1 --message declined --no-retry",
    )
    + ENVIRONMENT
)
@_KEY
@click.option("--message", required=True, metavar="TEXT", help="What went wrong.")
@click.option("--name", default="Error", show_default=True, help="Name of the error.")
@click.option("--no-retry", is_flag=True, help="Do not retry it, whatever its node declares.")
@click.option(
    "--retry-after", type=_Duration(), help="Delay of the next attempt, instead of the node's."
)
@prints
@service_options
def fail(
    client: "SyncClient", job: str, message: str, name: str, no_retry: bool, retry_after: int | None
) -> Result:
    """Fail an attempt: the node's retry policy decides whether it is retried or fails its run.

    Repeating it has no further effect.
    """
    if no_retry and retry_after is not None:
        raise click.UsageError("expected --no-retry or --retry-after, found both")

    client.run(
        client.job(job).fail(message, name=name, retryable=not no_retry, retry_after=retry_after)
    )
    return _reported(job, "has failed")


@jobs.command(
    epilog=examples("headwater jobs extend order.order-1.0.0.1 --lease '10 minutes'") + ENVIRONMENT
)
@_KEY
@_LEASE
@prints
@service_options
def extend(client: "SyncClient", job: str, lease: int) -> Result:
    """Extend the lease of a job, counted from now. It never gets shorter."""
    until = client.run(client.job(job).extend(lease))
    hint = f"You hold {job} until {absolute_and_relative(until, now())}."
    return Result(answer={"key": job, "leaseUntil": until}, hints=[hint])


def _reported(key: str, what: str) -> Result:
    return Result(answer={"key": key, "ok": True}, hints=[f"{key} {what}."])


def _listed(job: "JobListed", now: "datetime") -> dict[str, Any]:
    until = job.lease_until or job.next_retry_at
    return {
        "since": absolute_and_relative(job.created_at, now),
        "type": job.type,
        "instance": f"{job.workflow}/{job.instance_id}",
        "node": job.node_ref,
        "token": job.token_id,
        "attempt": job.attempt,
        "status": job.status,
        "worker": job.worker,
        "until": until and absolute_and_relative(until, now),
    }


def _row(job: "TakenJob", now: "datetime") -> dict[str, Any]:
    return {
        "key": job.key,
        "type": job.type,
        "instance": f"{job.workflow_name}/{job.instance_id}",
        "node": job.node_ref,
        "attempt": job.attempt,
        "lease until": absolute_and_relative(job.lease_until, now),
        "input": job.input,
    }
