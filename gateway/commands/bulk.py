"""What a command does to one instance, done to all that have a status or labels."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.commands.output import print_answer, print_rows, say
from headwater.gateway.commands.workflow_service import Service, instance_named, label_option
from headwater.schemas.statuses import RunStatus

if TYPE_CHECKING:
    from headwater.gateway.client import Client
    from headwater.schemas.answers import BulkChanged

STATUSES: Final = [status.value for status in RunStatus]


def one_or_all(action: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Which instance, as `instance_named` says, or all of a workflow with a status or labels.

    Shape:  beneath `service_options`, whose service the command is given.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        one = instance_named(command)

        @click.option("--status", type=click.Choice(STATUSES),
                      help="With -w: all instances that stand so.")  # fmt: skip
        @label_option("With -w: all instances that have this label; several times for several.")
        @click.option("--dry-run", is_flag=True, help="Of all: only say which they are.")
        @functools.wraps(one)
        def chosen(
            *,
            status: str | None,
            labels: dict[str, str],
            dry_run: bool,
            **given: Any,  # noqa: ANN401 (what the command takes)
        ) -> None:
            if status is None and not labels:
                if dry_run:
                    raise click.UsageError("--dry-run takes --status or --label")
                one(**given)
                return
            workflow = given.pop("workflow")
            service = given.pop("service")
            as_json = given.pop("as_json")
            reason = given.pop("reason", "")
            if workflow is None or any(given.values()):
                raise click.UsageError(
                    "expected -w WORKFLOW with --status or --label, and nothing that is of one "
                    "instance alone"
                )
            asked = {"status": status, "labels": labels, "dry_run": dry_run, "reason": reason}
            _change(service, action, workflow, asked, as_json=as_json)

        return chosen

    return decorate


def _change(
    service: Service, action: str, workflow: str, asked: dict[str, Any], *, as_json: bool
) -> None:
    """Does it, says how far it is page by page, and shows those that refused."""

    async def ask(client: "Client") -> "list[BulkChanged]":
        found: list[BulkChanged] = []
        pages = client.workflow(workflow).change_all(action, **asked)
        async for page in pages:
            found += page.instances
            if page.has_next_page:
                say(f"{action}: {_count(found)} so far")
        return found

    found = service.ask(ask)
    if as_json:
        print_answer(found)
    if asked["dry_run"]:
        rows = [_named(workflow, one) | {"status": one.status} for one in found]
        if not as_json:
            print_rows(rows, ("instance", "status"))
        say(f"{action} would be done to {len(found)}; nothing was done.")
        return
    refused = [one for one in found if one.code]
    rows = [_named(workflow, one) | {"code": one.code, "why": one.detail} for one in refused]
    if rows and not as_json:
        print_rows(rows, ("instance", "code", "why"), drops=("code",))
    say(f"{action}: {_count(found)}.")
    if refused:
        raise click.exceptions.Exit(1)


def _named(workflow: str, one: "BulkChanged") -> dict[str, str | None]:
    return {"instance": f"{workflow}/{one.id}"}


def _count(found: "list[BulkChanged]") -> str:
    refused = sum(one.code is not None for one in found)
    return f"{len(found) - refused} done" + (f", {refused} refused" if refused else "")
