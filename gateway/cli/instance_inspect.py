"""`headwater instances …`: inspect instances of graphs, now or at an earlier event."""

from typing import TYPE_CHECKING, Any, Final, Literal

import click

from headwater.gateway.cli.options import JsonArgument, JsonValue, examples
from headwater.gateway.cli.results import Columns, Result, fields, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    service_options,
)
from headwater.gateway.client.texts import moment

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient
    from headwater.schemas.graph_answers import AsOf, LiveToken, Simulated, TracedDecision, WaitsFor
    from headwater.streams.authoring.inspection import InspectableInstance

_at_option: Final = click.option(
    "--at",
    type=click.IntRange(min=0),
    metavar="SEQUENCE",
    help="As of this event of the run. Default: now.",
)
_run_option: Final = click.option(
    "--run", type=click.IntRange(min=0), help="Number of the run, from 0. Default: the current."
)
_TOKENS: Final = Columns(
    ("token", "node", "status", "branch", "attempts", "waits for"), drops=("attempts", "branch")
)
_TRACE: Final = Columns(
    ("sequence", "at", "what", "token", "node", "payload"), drops=("at", "token")
)
_FIRES: Final = Columns(("transition", "to", "tokens"))


@click.command(
    "tokens",
    epilog=examples(
        "headwater instances tokens review/review-1",
        "headwater instances tokens review/review-1 --at 12      as of event 12",
        "headwater instances tokens review/review-1 --run 0      before it was retried",
    )
    + ENVIRONMENT,
)
@instance_named
@_at_option
@_run_option
@prints
@service_options
def tokens(
    client: "SyncClient", *, instance: InstanceName, at: int | None, run: int | None
) -> Result:
    """Show the live tokens of a graph, and what they wait for."""
    state = client.run(_inspected(client, instance, run).introspect_tokens(at))
    table = _TOKENS.table(map(_token_row, state.tokens), _title(state))
    return Result(answer=state, tables=[table])


@click.command(
    "explain",
    epilog=examples(
        "headwater instances explain review/review-1             why does it wait?",
        "headwater instances explain review/review-1 --at 12",
    )
    + ENVIRONMENT,
)
@instance_named
@_at_option
@_run_option
@prints
@service_options
def explain(
    client: "SyncClient", *, instance: InstanceName, at: int | None, run: int | None
) -> Result:
    """Explain why an instance of a graph waits.

    For every join that waits: which branches have arrived, which have not and why, when it times
    out and what happens then.
    """
    explanation = client.run(_inspected(client, instance, run).explain(at))
    return Result(answer=explanation, text="".join(f"{line}\n" for line in explanation.says))


@click.command(
    "draw",
    epilog=examples(
        "headwater instances draw review/review-1                       as Mermaid",
        "headwater instances draw review/review-1 --format svg > review.svg",
        "headwater instances draw review/review-1 --at 12               as of event 12",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--format", "format_", type=click.Choice(["mermaid", "svg"]), default="mermaid",
              show_default=True, help="Format of the drawing.")  # fmt: skip
@_at_option
@_run_option
@service_options
def draw(
    client: "SyncClient",
    instance: InstanceName,
    format_: Literal["svg", "mermaid"],
    at: int | None,
    run: int | None,
) -> None:
    """Draw the graph of an instance with the tokens of its run."""
    click.echo(
        client.run(_inspected(client, instance, run).draw(format_, at=at)),
        nl=False,
    )


@click.command(
    "simulate-routing",
    epilog=examples(
        "headwater instances simulate-routing review/review-1 --token 3",
        "headwater instances simulate-routing review/review-1 --node vote \\",
        '    --output \'{"vote": "yes"}\' --at 12',
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--token", help="The token that would complete.")
@click.option("--node", help="Instead of a token: the one at this node.")
@click.option("--output", type=JsonArgument(), help="Output of its task: JSON, @FILE, or -.")
@_at_option
@_run_option
@prints
@service_options
def routing(  # noqa: PLR0913 (one parameter a flag; click names them)
    client: "SyncClient",
    *,
    instance: InstanceName,
    token: str | None,
    node: str | None,
    output: JsonValue | None,
    at: int | None,
    run: int | None,
) -> Result:
    """Show what would follow if a token completed. Nothing is changed.

    Without --output, conditions are evaluated on the current context.
    """
    if (token is None) is (node is None):
        raise click.UsageError("expected --token or --node, found both or neither")

    keywords = {} if output is None else {"output": output.value}
    simulated = client.run(
        _inspected(client, instance, run).simulate_routing(token, node=node, at=at, **keywords)
    )
    rows = [
        {"transition": fired.transition_ref, "to": fired.to_node_ref, "tokens": fired.tokens}
        for fired in simulated.fires
    ]
    token_, hints = simulated.token, [_end_text(simulated)]
    if not rows:
        hints.insert(0, f"Token {token_.id} would lead nowhere from {token_.node_ref}.")
    return Result(answer=simulated, tables=[_FIRES.table(rows, _title(simulated))], hints=hints)


@click.command(
    "simulate-synchronization",
    epilog=examples(
        "headwater instances simulate-synchronization review/review-1 --token 3 \\",
        "    --transition meet",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--token", required=True, help="The token that would arrive.")
@click.option("--transition", required=True, metavar="REF", help="The transition it would take.")
@_at_option
@_run_option
@prints
@service_options
def synchronization(
    client: "SyncClient",
    *,
    instance: InstanceName,
    token: str,
    transition: str,
    at: int | None,
    run: int | None,
) -> Result:
    """Show what a join would decide if a token arrived. Nothing is changed."""
    simulated = client.run(
        _inspected(client, instance, run).simulate_synchronization(token, transition, at=at)
    )
    from msgspec import to_builtins  # noqa: PLC0415 (loads more than --help needs)

    counts = to_builtins(simulated.counts) if simulated.counts else {}
    row = {"decision": simulated.decision, "strategy": simulated.strategy, **counts}
    table = fields(row.items(), _title(simulated))
    return Result(answer=simulated, tables=[table], hints=[_end_text(simulated)])


@click.command(
    "trace",
    epilog=examples(
        "headwater instances trace review/review-1",
        "headwater instances trace review/review-1 --from 10 --to 20",
        "headwater instances trace review/review-1 --json     with all details of the decisions",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--from", "first", type=click.IntRange(min=0), default=0, show_default=True,
              help="First event of the decisions.")  # fmt: skip
@click.option("--to", "last", type=click.IntRange(min=0), help="Last event.")
@_run_option
@prints
@service_options
def trace(
    client: "SyncClient", *, instance: InstanceName, first: int, last: int | None, run: int | None
) -> Result:
    """Show how a graph's decisions were made, by deciding again from the history."""
    decisions = list(client.iterate(_inspected(client, instance, run).trace(first, last)))
    rows = [_trace_row(entry, decision) for decision in decisions for entry in decision.trace]
    hints = [
        f"Another release decided differently at {decision.sequence}: only the events that it "
        "recorded are shown."
        for decision in decisions
        if not decision.same
    ]
    return Result(answer=decisions, tables=[_TRACE.table(rows, str(instance))], hints=hints)


def _inspected(
    client: "SyncClient", instance: InstanceName, run: int | None
) -> "InspectableInstance":
    handle = instance.handle(client)
    return handle if run is None else handle.in_run(run)


def _title(state: "AsOf") -> str:
    return (
        f"{state.workflow_name}/{state.instance_id}, run {state.run_number}, as of sequence "
        f"{state.sequence} ({moment(state.at)}), definition {state.definition_digest[:8]}"
    )


def _token_row(token: "LiveToken") -> dict[str, Any]:
    alone = token.fork is None
    return {
        "token": token.id,
        "node": token.node_ref,
        "status": token.status,
        "branch": None if alone else f"{token.branch_index} of {token.branch_total}",
        "attempts": token.attempts or None,
        "waits for": _waits(token.waits_for),
    }


def _waits(waits: "WaitsFor") -> str:
    child = f" {waits.child_workflow_name}/{waits.child_instance_id}"
    worker = f", by {waits.worker}" if waits.worker else ""
    worker += f" {waits.event_type}" if waits.event_type else ""
    until = f", until {moment(waits.until)}" if waits.until else ""
    return f"{waits.what}{child if waits.child_instance_id else ''}{worker}{until}"


def _end_text(simulated: "Simulated") -> str:
    why = f": {simulated.error.name}: {simulated.error.message}" if simulated.error else ""
    return f"The run would be {simulated.would_be}{why}. --json shows all decisions."


def _trace_row(entry: dict[str, Any], decision: "TracedDecision") -> dict[str, Any]:
    return {
        "sequence": entry["sequence"],
        "at": moment(decision.at),
        "what": entry["type"],
        "token": entry["token_id"],
        "node": entry["node_ref"],
        "payload": entry["payload"],
    }


INSPECT_COMMANDS: Final = (tokens, explain, draw, routing, synchronization, trace)
