"""`headwater deployments`: code of workflows, deployed, activated, rolled back and shown."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from headwater.gateway.commands.api import Api, admin_options, path_of
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_json, print_rows, say
from headwater.gateway.commands.times import moment

_BASE: Final = "/v1/deployments"
_COLUMNS: Final = ("id", "active", "app", "workflows", "deployed", "by", "activated")
_DROPS: Final = ("by", "activated", "deployed")
_PAGE: Final = 100
#: Seconds: an artifact is sent whole, and imported before it is taken.
_WITHIN_S: Final = 120.0

_replaces = click.option(
    "--replaces",
    metavar="ID",
    help="Only if this deployment is active until then; `none` if none may be.",
)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater deployments deploy . --app orders",
        "headwater deployments deploy . --app shop.workflows:all --activate",
        "headwater deployments activate dep_5d41402abc4b2a76b971",
        "headwater deployments rollback",
        "headwater deployments list",
    ),
)
def deployments() -> None:
    """Deploy code of workflows, activate it, roll it back, and see what is active.

    New runs begin on the active deployment, and stay on it: what is activated later is for runs
    that begin later. Until one is active, runs are of the app that workers are started with.
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
    help="The app in it: a module, or a workflow or list of workflows in one.",
)
@click.option("--activate", "at_once", is_flag=True, help="Activate it, too.")
@admin_options
@json_option
def deploy(
    artifact: Path,
    app: str,
    at_once: bool,
    api: Api,
    as_json: bool,
) -> None:
    """Deploy an app: a folder, or a zip or wheel of one.

    Of a folder all is sent but what is hidden, caches of Python and virtual environments: at most
    10 MiB. The gateway imports it, and refuses what cannot be imported. What is deployed again is
    the same deployment. Nothing changes before it is activated.
    """
    found = api.upload(_BASE, _content_of(artifact), "application/zip", within_s=_WITHIN_S, app=app)
    if at_once:
        found = api.post(f"{_BASE}/{found['id']}/activate", {})
    _print(found, as_json=as_json)
    if not found["active"]:
        say(f"New runs begin on it after `headwater deployments activate {found['id']}`.")


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
@json_option
def list_deployments(limit: int, api: Api, as_json: bool) -> None:
    """List deployments, the newest first."""
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < limit:
        page = api.get(_BASE, limit=min(_PAGE, limit - len(found)), cursor=cursor)
        found += page["deployments"]
        cursor = page.get("cursor")
        if cursor is None:
            break
    if as_json:
        print_json(found)
        return
    print_rows([_row(each) for each in found], _COLUMNS, drops=_DROPS)
    if not found:
        say("Nothing is deployed: `headwater deployments deploy FOLDER --app …` deploys an app.")
    if cursor is not None:
        say("There are older ones: --limit shows more.")


@deployments.command(
    epilog=examples(
        "headwater deployments show                            the active one",
        "headwater deployments show dep_5d41402abc4b2a76b971",
    )
)
@click.argument("deployment_id", metavar="[ID]", default="active")
@admin_options
@json_option
def show(deployment_id: str, api: Api, as_json: bool) -> None:
    """Show a deployment, its workflows and schedules; without an id, the active one."""
    found = api.get(_path(deployment_id))
    _print(found, as_json=as_json)
    if not as_json:
        rows = [{"kind": "code", "versioning": "pinned", **each} for each in found["workflows"]]
        print_rows(rows, ("name", "versioning", "kind"), title="workflows")
        if found.get("schedules"):
            columns = ("name", "workflow", "cron", "timezone")
            print_rows(found["schedules"], columns, title="schedules")
        say(f"{found['size']} bytes, SHA-256 {found['digest']}")


@deployments.command(
    epilog=examples(
        "headwater deployments activate dep_5d41402abc4b2a76b971",
        "headwater deployments activate dep_5d41402abc4b2a76b971 --replaces dep_98f13708210194…",
    )
)
@click.argument("deployment_id", metavar="ID")
@_replaces
@admin_options
@json_option
def activate(
    deployment_id: str,
    replaces: str | None,
    api: Api,
    as_json: bool,
) -> None:
    """Have new runs begin on a deployment; those under way stay on theirs."""
    found = api.post(f"{_path(deployment_id)}/activate", {}, **_tag(replaces))
    _print(found, as_json=as_json)
    _say_what_stays(found)


@deployments.command(
    epilog=examples(
        "headwater deployments rollback",
        "headwater deployments rollback dep_5d41402abc4b2a76b971     to one before that",
    )
)
@click.argument("deployment_id", metavar="[ID]", required=False)
@_replaces
@admin_options
@json_option
def rollback(
    deployment_id: str | None,
    replaces: str | None,
    api: Api,
    as_json: bool,
) -> None:
    """Go back to the deployment that was active before, or to one before that.

    Runs that began on the present one stay on it. Another rollback goes back by one more.
    """
    body = {} if deployment_id is None else {"deploymentId": deployment_id}
    found = api.post(f"{_BASE}/rollback", body, **_tag(replaces))
    _print(found, as_json=as_json)
    _say_what_stays(found)


def _content_of(artifact: Path) -> bytes:
    from headwater.gateway.client.artifacts import artifact_of  # noqa: PLC0415 (loads slowly)

    try:
        return artifact_of(artifact)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _path(deployment_id: str) -> str:
    return _BASE + path_of(deployment_id)


def _tag(replaces: str | None) -> dict[str, str]:
    return {} if replaces is None else {"if-match": f'"{replaces}"'}


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_rows([_row(found)], _COLUMNS, drops=_DROPS)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    names = [each["name"] for each in found["workflows"]]
    return {
        **found,
        "workflows": ", ".join(names),
        "deployed": _moment(found["deployedAt"]),
        "by": found["deployedBy"],
        "activated": _moment(found["activatedAt"]) if "activatedAt" in found else None,
    }


def _moment(text: str) -> str:
    return moment(datetime.fromisoformat(text))


def _say_what_stays(found: dict[str, Any]) -> None:
    before = found.get("replaces")
    if before:
        say(f"Runs that began on {before} stay on it.")
