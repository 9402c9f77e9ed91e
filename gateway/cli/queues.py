"""`headwater queue`: publish messages to queues, and list the messages that wait."""

from typing import TYPE_CHECKING

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import JsonArgument, JsonValue, examples
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.cli.runs import checked_key
from headwater.gateway.cli.workflow_service import ENVIRONMENT, service_options

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient

_LISTED = Columns(("queue", "waiting"))


@click.group(
    cls=Group,
    epilog=examples(
        """headwater queue send order '{"sku": "x"}'""",
        "headwater queue list",
    )
    + ENVIRONMENT,
)
def queue() -> None:
    """Publish messages to queues, and list the messages that wait."""


@queue.command(
    epilog=examples(
        """headwater queue send order '{"sku": "x"}'""",
        "headwater queue send order @order.json --delay 30s",
        "headwater queue send order --idempotency-key order-17      once, for a day",
    )
    + ENVIRONMENT
)
@click.argument("name")
@click.argument("message", type=JsonArgument(), required=False)
@click.option("--delay", metavar="DURATION", default="0", help="Time until it is delivered: 30s.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    callback=checked_key,
    help="Within a day, messages with the same key are published once.",
)
@click.option("--deployment", metavar="ID", help="Deployment of its run. Default: the active one.")
@prints
@service_options
def send(
    client: "SyncClient",
    name: str,
    message: JsonValue | None,
    delay: str,
    idempotency_key: str | None,
    deployment: str | None,
) -> Result:
    """Publish a message, and print its id."""
    value = message.value if message else None
    try:
        published = client.run(
            client.queues.send(name, value, delay=delay, key=idempotency_key, deployment=deployment)
        )
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    note = "It was published before." if published.deduped else "Published."
    return Result(answer=published, text=f"{published.message_id}\n", hints=[note])


@queue.command("list", epilog=examples("headwater queue list", "headwater queue list --json"))
@prints
@service_options
def list_queues(client: "SyncClient") -> Result:
    """List queues with messages that wait for the end of their delay, or for a worker."""
    listed = client.run(client.queues.list()).data
    rows = ({"queue": item.name, "waiting": item.waiting} for item in listed)
    return listing(listed, _LISTED.table(rows), none="No messages wait.", more=None)
