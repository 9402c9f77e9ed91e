"""`headwater workflows`: which workflows there are."""

from typing import TYPE_CHECKING

import click

from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_answer, print_rows, say
from headwater.gateway.commands.workflow_service import ENVIRONMENT, Service, service_options

if TYPE_CHECKING:
    from headwater.schemas.answers import WorkflowListed


@click.group(
    cls=Group,
    epilog=examples(
        "headwater workflows list",
        "headwater workflows list --url https://host/api/workflows",
        "headwater instances list -w order      the instances of one of them",
    )
    + ENVIRONMENT,
)
def workflows() -> None:
    """See which workflows exist. Their instances: `headwater instances`."""


@workflows.command(
    "list",
    epilog=examples(
        "headwater workflows list",
        'headwater workflows list --url https://host/api/workflows -H "X-Tenant: a"',
    )
    + ENVIRONMENT,
)
@json_option
@service_options
def list_workflows(service: Service, *, as_json: bool) -> None:
    """List the workflows whose code a worker has or had, and those that are deployed.

    Of those with a limit of concurrency: how many runs have a slot, and how many wait for one.
    As JSON each has the JSON Schema of its params, if it declares one, and its limit's longest
    queues.
    """
    found = service.ask(lambda client: client.workflows())
    if as_json:
        print_answer(found)
        return
    limited = any(one.concurrency for one in found)
    columns = ("workflow", "limit", "per", "running", "waiting") if limited else ("workflow",)
    print_rows([_row(one) for one in found], columns)
    if not found:
        say("There are no workflows: `headwater worker --app …` brings those of an app.")


def _row(one: "WorkflowListed") -> dict[str, object]:
    limit = one.concurrency
    if limit is None:
        return {"workflow": one.name}
    return {
        "workflow": one.name,
        "limit": limit.limit,
        "per": limit.key,
        "running": limit.held,
        "waiting": limit.waiting,
    }
