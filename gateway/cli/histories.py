"""`headwater histories export` and `check-replay`: recorded runs as files, and their replay."""

import asyncio
import json
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from headwater.gateway.cli.instance_changes import STATUSES
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import counted
from headwater.gateway.cli.results import Columns, Result, prints
from headwater.gateway.cli.workflow_service import ENVIRONMENT, service_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.answers import InstanceFound
    from headwater.schemas.replay_answers import ReplayReport

#: Ending of the names of exported histories.
SUFFIX: Final = ".jsonl"
_OPEN: Final = ("active", "waiting", "paused")
_EXPORTED: Final = Columns(("instance", "run", "status", "file"))


@click.group(
    cls=Group,
    epilog=examples(
        "headwater histories export histories             all open runs",
        "headwater check-replay histories --app shop      do they fit this code?",
    )
    + ENVIRONMENT,
)
def histories() -> None:
    """Export histories of runs, to replay them against changed code."""


@histories.command(
    epilog=examples(
        "headwater histories export histories",
        "headwater histories export histories -w order --sample 20",
        "headwater histories export histories -w order --status complete --sample 5",
    )
    + ENVIRONMENT
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("-w", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(STATUSES),
    multiple=True,
    help="Runs with this status, repeatable. Default: all that have not ended.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 100_000),
    help="Only so many of each status, the newest ones.",
)
@prints
@service_options
def export(
    client: "SyncClient",
    *,
    folder: Path,
    workflow: str | None,
    statuses: tuple[str, ...],
    sample: int | None,
) -> Result:
    """Write the history of each run into a file, as JSON lines.

    The gateway replaces the values of fields that its HEADWATER_REDACTED_FIELDS names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for status in statuses or _OPEN:
        for instance in islice(_instances(client, workflow, status), sample):
            handle = client.workflow(instance.workflow_name).get(instance.id)
            file = folder / file_name(instance.workflow_name, instance.id)
            text = client.run(handle.export_history())
            file.write_text(text, encoding="utf-8")
            name = f"{instance.workflow_name}/{instance.id}"
            described = json.loads(text.partition("\n")[0])
            run, status_now = described["runNumber"], described["status"]
            rows.append({"instance": name, "run": run, "status": status_now, "file": str(file)})
    hint = f"{counted(len(rows), 'history', 'histories')} in {folder}."
    return Result(answer=rows, tables=[_EXPORTED.table(rows)] if rows else [], hints=[hint])


def file_name(workflow: str, instance_id: str) -> str:
    """Return the name of the file of an instance's history."""
    return f"{workflow}-{quote(instance_id, safe=' ')}{SUFFIX}"


def _instances(
    client: "SyncClient", workflow: str | None, status: str
) -> "Iterator[InstanceFound]":
    listing: Any = client.workflow(workflow) if workflow else client
    return client.iterate(listing.instances(status))


# -- replay


@click.command(
    "check-replay",
    epilog=examples(
        "headwater check-replay histories --app shop.workflows",
        "headwater check-replay histories --app shop.workflows --json",
    ),
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--app", required=True, metavar="MODULE[:NAME]", help="The code, as for a worker.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Longest time of all replays.",
)
@prints
def check_replay(folder: Path, app: str, seconds: float) -> Result:
    """Replay exported histories against code; exit 1 if one does not fit.

    No step is called: what the code requests is compared with what is recorded. Needs no running
    Headwater.
    """
    from headwater.schemas.replay_answers import report_lines  # noqa: PLC0415 (slow)

    report = asyncio.run(_replayed(folder, app, seconds))
    text = "".join(f"{line}\n" for line in report_lines(report))
    return Result(answer=report, text=text, failed=bool(report.diverged or report.error))


async def _replayed(folder: Path, app: str, seconds: float) -> "ReplayReport":
    # Slow to import.
    from headwater.schemas.replay_answers import ReplayReport, sorted_report  # noqa: PLC0415
    from headwater.streams.harness.history_checks import read_folder  # noqa: PLC0415
    from headwater.streams.workflows.replay_process import (  # noqa: PLC0415
        ReplayLimits,
        replay_runs,
    )

    replays = await replay_runs(
        app,
        read_folder(folder),
        limits=ReplayLimits(seconds=seconds),
        environment=os.environ,
    )
    declared, runs, not_replayed = replays
    return sorted_report(ReplayReport(runs=runs, not_replayed=not_replayed, error=declared.error))
