"""`headwater deployments`: deploy workflow code, activate it, roll it back, show it, remove it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    check_forced,
    collect_pages,
    examples,
    force_options,
)
from headwater.gateway.cli.output import counted, say
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.client.texts import moment
from headwater.schemas.failures import DEPLOYMENT_IN_USE, CommandRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.schemas.v1_answers import Deployment, DeploymentActive, EnvironmentOnMachine

_LISTED: Final = Columns(
    ("id", "active", "open runs", "state", "app", "workflows", "deployed", "by", "activated"),
    drops=("by", "activated", "deployed", "open runs"),
)
_WORKFLOWS: Final = Columns(("name", "versioning", "kind"))
_SCHEDULES: Final = Columns(("name", "workflow", "cron", "timezone"))
_REQUIREMENTS: Final = Columns(("package", "version"))
_MACHINES: Final = Columns(("machine", "state", "reported", "reason"))
_DIFFERENCES: Final = Columns(("kind", "name", "change", "fields"))
_PAGE: Final = 100
_ALL: Final = 100
#: Seconds that one request waits for open runs.
_WAIT_S: Final = 30

_replaces = click.option(
    "--replaces",
    default="",
    metavar="ID",
    help="Only if this deployment is active until then; `none` if none is.",
)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater deployments deploy . --app orders",
        "headwater deployments deploy . --app shop.workflows:all --activate",
        "headwater deployments check dep_5d41402abc4b2a76b971",
        "headwater deployments activate dep_5d41402abc4b2a76b971",
        "headwater deployments activate dep_5d41402abc4b2a76b971 --percent 10",
        "headwater deployments rollback",
        "headwater deployments list",
        "headwater deployments remove dep_5d41402abc4b2a76b971",
    ),
)
def deployments() -> None:
    """Deploy workflow code, activate it, roll it back, and see what is active.

    New runs begin on the active deployment and stay on it; later activations do not move them.
    While no deployment is active, runs use the app that workers are started with.
    """


@deployments.command(
    epilog=examples(
        "headwater deployments deploy . --app orders",
        "headwater deployments deploy dist/shop-1.0-py3-none-any.whl --app shop.workflows",
        "headwater deployments deploy . --app orders --json | jq -r .id",
    )
)
@click.argument("artifact", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--app",
    required=True,
    metavar="MODULE[:NAME]",
    help="The app in the artifact: a module, or a workflow or list of workflows in one.",
)
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A requirements.txt with hashes, for a wheel, which has none.",
)
@click.option("--activate", "at_once", is_flag=True, help="Also activate it.")
@force_options
@admin_options
@prints
def deploy(  # noqa: PLR0913, PLR0917 (one parameter per option)
    artifact: Path,
    app: str,
    requirements: Path | None,
    at_once: bool,
    force: bool,
    reason: str,
    api: Api,
) -> Result:
    """Deploy an app: a folder, or a zip or wheel of one.

    A folder is sent without hidden files, Python's caches and virtual environments: at most
    10 MiB. Packages of its requirements.txt are installed, which has to have hashes. The gateway
    refuses an app that it cannot import. The same content is the same deployment. Nothing changes
    before it is activated. With --activate, --force and --reason are those of `activate`.
    """
    check_forced(reason, force=force)
    if force and not at_once:
        raise click.UsageError("expected --activate with --force, found --force alone")
    deployments = api.client.deployments
    content = _content_of(artifact, requirements)
    deployed = api.client.run(deployments.deploy(content, app=app))
    if at_once:
        return _activated(api.client.run(deployments.activate(deployed.id, force_reason=reason)))
    activation = f"`headwater deployments activate {deployed.id}`"
    hints = [] if deployed.active else [f"New runs begin on it after {activation}."]
    return Result(answer=deployed, tables=[_LISTED.table([_row(deployed)])], hints=hints)


@deployments.command(
    "list",
    epilog=examples(
        "headwater deployments list", "headwater deployments list --json | jq '.[] | .id'"
    ),
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many, at most."
)
@admin_options
@prints
def list_deployments(limit: int, api: Api) -> Result:
    """List deployments, newest first."""

    def page(limit: int, after: str | None) -> "tuple[list[Deployment], str | None]":
        answer = api.client.run(api.client.deployments.page(limit=limit, cursor=after))
        return answer.deployments, answer.cursor

    listed, more = collect_pages(page, limit=limit, page_size=_PAGE, cursor=None)
    none = "Nothing is deployed: `headwater deployments deploy FOLDER --app …` deploys an app."
    table = _LISTED.table(map(_row, listed))
    return listing(listed, table, none=none, more=more and str(2 * limit), by="--limit")


@deployments.command(
    epilog=examples(
        "headwater deployments show                            the active one",
        "headwater deployments show dep_5d41402abc4b2a76b971",
    )
)
@click.argument("deployment_id", metavar="[ID]", default="active")
@admin_options
@prints
def show(deployment_id: str, api: Api) -> Result:
    """Show a deployment, by default the active one.

    With its workflows, schedules, open runs, and the packages of its environment, and on which
    machines of workers that is installed.
    """
    deployment = api.client.run(api.client.deployments.get(deployment_id))
    tables = [
        _LISTED.table([_row(deployment)]),
        _WORKFLOWS.table(map(structs.asdict, deployment.workflows), "workflows"),
    ]
    if deployment.schedules:
        tables.append(_SCHEDULES.table(map(structs.asdict, deployment.schedules), "schedules"))
    hints = [f"{deployment.size} bytes, SHA-256 {deployment.digest}"]
    if (environment := deployment.environment) is not None:
        pins = (text.partition("==") for text in environment.requirements or ())
        rows = [{"package": name, "version": version} for name, _, version in pins]
        tables.append(_REQUIREMENTS.table(rows, "requirements"))
        if environment.machines:
            tables.append(_MACHINES.table(map(_machine_row, environment.machines), "environment"))
        hints.append(
            f"Environment of {environment.packages} packages, {environment.size} bytes, SHA-256 "
            f"{environment.digest}"
        )
    return Result(answer=deployment, tables=tables, hints=hints)


@deployments.command(
    epilog=examples(
        "headwater deployments activate dep_5d41402abc4b2a76b971",
        "headwater deployments activate dep_5d41402abc4b2a76b971 --replaces dep_98f13708210194…",
        "headwater deployments activate dep_5d41402abc4b2a76b971 --percent 10",
        'headwater deployments activate dep_5d41402abc4b2a76b971 --force --reason "poll is fixed"',
    )
)
@click.argument("deployment_id", metavar="ID")
@click.option(
    "--percent",
    type=click.IntRange(min=0, max=_ALL),
    default=_ALL,
    metavar="N",
    help="Only this percentage of the new runs; 0 ends the share.",
)
@_replaces
@force_options
@admin_options
@prints
def activate(
    deployment_id: str, percent: int, replaces: str, force: bool, reason: str, api: Api
) -> Result:
    """Start new runs on a deployment; existing runs stay on theirs.

    First, open runs are replayed against its code. It is refused if a run that would continue on
    it does not fit: runs of workflows with versioning="latest".

    With --percent, the other new runs start on the active deployment. The id of an instance decides
    on which; an instance in a share is in every greater one.
    """
    check_forced(reason, force=force)
    deployments = api.client.deployments
    activated = api.client.run(
        deployments.activate(deployment_id, percent=percent, replaces=replaces, force_reason=reason)
    )
    return _activated(activated)


@deployments.command(epilog=examples("headwater deployments check dep_5d41402abc4b2a76b971"))
@click.argument("deployment_id", metavar="ID")
@admin_options
@prints
def check(deployment_id: str, api: Api) -> Result:
    """Replay runs against a deployment, without activating it; exit 1 if one does not fit it.

    Of each run that differs, shows the first entry that does: recorded and requested. No step is
    called. Also names workers that cannot load its code.
    """
    from headwater.schemas.replay_answers import report_lines  # noqa: PLC0415 (slow)

    report = api.client.run(api.client.deployments.check(deployment_id))
    text = "".join(f"{line}\n" for line in report_lines(report))
    failed = bool(report.diverged or report.error or report.not_loaded)
    return Result(answer=report, text=text, failed=failed)


@deployments.command(
    epilog=examples(
        "headwater deployments rollback",
        "headwater deployments rollback dep_5d41402abc4b2a76b971     to an earlier one",
    )
)
@click.argument("deployment_id", metavar="[ID]", required=False)
@_replaces
@force_options
@admin_options
@prints
def rollback(
    deployment_id: str | None, replaces: str, force: bool, reason: str, api: Api
) -> Result:
    """Go back to the deployment that was active before, or to an earlier one.

    Runs of the present one stay on it. Another rollback goes back by one more. While another
    deployment has a share of the new runs, a rollback ends the share. Open
    runs are replayed as before an activation.
    """
    check_forced(reason, force=force)
    activated = api.client.run(
        api.client.deployments.rollback(deployment_id, replaces=replaces, force_reason=reason)
    )
    return _activated(activated)


@deployments.command(
    epilog=examples(
        "headwater deployments remove dep_98f1370821019495b2e5",
        "headwater deployments remove dep_98f1370821019495b2e5 --wait    until its runs have ended",
    )
)
@click.argument("deployment_id", metavar="ID")
@click.option(
    "--wait",
    is_flag=True,
    help="Let no new run begin on it, and wait until its runs have ended.",
)
@admin_options
@prints
def remove(deployment_id: str, wait: bool, api: Api) -> Result:
    """Remove a deployment that gets no new runs and has no open ones.

    Its artifact is deleted. Ended runs of it stay readable; retries of them need another one.
    If --wait is interrupted, it stays closed to new runs; deploying it again opens it.
    """
    while True:
        removal = api.client.deployments.remove(deployment_id, wait_s=_WAIT_S if wait else 0)
        try:
            api.client.run(removal)
        except CommandRefusedError as error:
            if not wait or error.code != DEPLOYMENT_IN_USE:
                raise
            say(error.detail)
        else:
            return Result(answer={"removed": deployment_id}, hints=[f"{deployment_id} is removed."])


@deployments.command(
    epilog=examples(
        "headwater deployments diff dep_98f1370821019495b2e5    with the active one",
        "headwater deployments diff dep_98f1370821019495b2e5 dep_5d41402abc4b2a76b971",
    )
)
@click.argument("before", metavar="ID")
@click.argument("after", metavar="[ID]", default="active")
@admin_options
@prints
def diff(before: str, after: str, api: Api) -> Result:
    """Compare the workflows and schedules of two deployments.

    The code itself is not compared: it is in the artifacts, which you built.
    """
    first, second = (
        api.client.run(api.client.deployments.get(deployment_id))
        for deployment_id in (before, after)
    )
    rows = list(_differences(first, second))
    same = "" if first.digest == second.digest else " Their artifacts differ."
    none = f"{first.id} and {second.id} declare the same.{same}"
    hints = [] if rows else [none]
    return Result(answer=rows, tables=[_DIFFERENCES.table(rows)] if rows else [], hints=hints)


def _differences(before: "Deployment", after: "Deployment") -> "Iterator[dict[str, Any]]":
    """Yield what two deployments declare differently, by kind and name."""
    for kind in ("workflows", "schedules"):
        old, new = (
            {declared.name: declared for declared in getattr(deployment, kind)}
            for deployment in (before, after)
        )
        for name in sorted(old.keys() | new.keys()):
            one, other = old.get(name), new.get(name)
            if one is None or other is None:
                change = "added" if one is None else "removed"
                yield {"kind": kind[:-1], "name": name, "change": change, "fields": ""}
            elif one != other:
                fields = [
                    field.name
                    for field in structs.fields(one)
                    if getattr(one, field.name) != getattr(other, field.name)
                ]
                yield {
                    "kind": kind[:-1],
                    "name": name,
                    "change": "changed",
                    "fields": ", ".join(fields),
                }


def _content_of(artifact: Path, requirements: Path | None) -> bytes:
    from headwater.gateway.client.deployments import artifact_of  # noqa: PLC0415 (loads slowly)

    try:
        return artifact_of(artifact, requirements)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _machine_row(machine: "EnvironmentOnMachine") -> dict[str, Any]:
    reported = moment(machine.reported_at)
    return structs.asdict(machine) | {"reported": reported, "reason": machine.reason or ""}


@deployments.command(
    epilog=examples("headwater deployments install dep_5d41402abc4b2a76b971"),
)
@click.argument("deployment_id", metavar="[ID]", default="active")
@admin_options
@prints
def install(deployment_id: str, api: Api) -> Result:
    """Let workers that could not install the requirements of a deployment try again.

    Other workers do nothing. By default, of the active deployment.
    """
    deployments = api.client.deployments
    if deployment_id == "active":
        deployment_id = api.client.run(deployments.active()).id
    deployment = api.client.run(deployments.install(deployment_id))
    hints = [f"`headwater deployments show {deployment.id}` states what came of it."]
    return Result(answer=deployment, tables=[_LISTED.table([_row(deployment)])], hints=hints)


def _activated(deployment: "DeploymentActive") -> Result:
    former = deployment.replaces
    hints = [f"Runs that began on {former} stay on it."] if former else []
    if not deployment.active:
        hints = [f"{deployment.percent or 0} % of the new runs begin on {deployment.id}."]
    differing = [] if deployment.replay is None else deployment.replay.diverged
    moving = sum(run.moves for run in differing)
    names = f"`headwater deployments check {deployment.id}` names them."
    if moving:
        verbs = ("continues", "does") if moving == 1 else ("continue", "do")
        what = f"{counted(moving, 'run')} that {verbs[0]} on it {verbs[1]} not fit it"
        hints.append(f"{what}: {names}")
    if others := len(differing) - moving:
        hints.append(f"{counted(others, 'run')} on other code would not fit it: {names}")
    return Result(answer=deployment, tables=[_LISTED.table([_row(deployment)])], hints=hints)


def _state(deployment: "Deployment") -> str | None:
    """Return the status of a deployment with its number, as `draining: 3 open runs`."""
    match deployment.status:
        case "active" | "sharing":
            percent = deployment.percent
            return deployment.status if percent == _ALL else f"{percent} % of new runs"
        case "draining" | "removing":
            runs = deployment.open_runs
            count = "" if runs is None else f": {runs} open run{'' if runs == 1 else 's'}"
            return f"{deployment.status}{count}"
        case "drained":
            since = deployment.drained_at
            return "drained" if since is None else f"drained since {moment(since)}"
        case _:
            return deployment.status


def _row(deployment: "Deployment") -> dict[str, Any]:
    return {
        "id": deployment.id,
        "active": deployment.active,
        "state": _state(deployment),
        "open runs": deployment.open_runs,
        "app": deployment.app,
        "workflows": ", ".join(workflow.name for workflow in deployment.workflows),
        "deployed": moment(deployment.deployed_at),
        "by": deployment.deployed_by,
        "activated": moment(deployment.activated_at) if deployment.activated_at else None,
    }
