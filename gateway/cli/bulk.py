"""Commands on one instance, or on all instances that have a status or labels."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.cli.output import counted, print_answer, print_rows, say
from headwater.gateway.cli.workflow_service import Service, instance_named, label_option
from headwater.schemas.statuses import RunStatus

if TYPE_CHECKING:
    from headwater.gateway.client import Client
    from headwater.schemas.answers import BulkChanged

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
