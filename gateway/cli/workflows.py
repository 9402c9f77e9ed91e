"""`headwater workflows`: lists workflows."""

from typing import TYPE_CHECKING

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, json_option
from headwater.gateway.cli.output import print_answer, print_rows, say
from headwater.gateway.cli.workflow_service import ENVIRONMENT, Service, service_options

if TYPE_CHECKING:
    from headwater.schemas.answers import WorkflowListed


@click.group(
    cls=Group,
    epilog=examples(
        "headwater workflows list",
        "headwater workflows list --url https://host/api/workflows",
        "headwater instances list -w order      the instances of one workflow",
    )
    + ENVIRONMENT,
)
def workflows() -> None:
    """List workflows. Their instances: `headwater instances`."""


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
    """List the workflows that workers have or had, and those that are deployed.

    Shows for a workflow with a concurrency limit how many runs have a slot, and how many wait for
    one. JSON has also the JSON Schema of its params, if it declares one, and the longest queues of
    its limit.
    """
    listed = service.ask(lambda client: client.workflows())
    if as_json:
        print_answer(listed)
        return
    limited = any(workflow.concurrency for workflow in listed)
    columns = ("workflow", "limit", "per", "running", "waiting") if limited else ("workflow",)
    print_rows([_row(workflow) for workflow in listed], columns)
    if not listed:
        say("There are no workflows: `headwater worker --app …` runs those of an app.")


def _row(workflow: "WorkflowListed") -> dict[str, object]:
    limit = workflow.concurrency
    if limit is None:
        return {"workflow": workflow.name}
    return {
        "workflow": workflow.name,
        "limit": limit.limit,
        "per": limit.key,
        "running": limit.held,
        "waiting": limit.waiting,
    }
