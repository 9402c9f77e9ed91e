"""`headwater instances …`: looking into instances of graphs, as they are or were."""

from typing import TYPE_CHECKING, Any, Final, Literal

import click

from headwater.gateway.commands.json_arguments import Given, JsonArgument
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import print_answer, print_fields, print_rows, say
from headwater.gateway.commands.times import moment
from headwater.gateway.commands.workflow_service import (
    ENVIRONMENT,
    Named,
    Service,
    instance_named,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client import Client
    from headwater.schemas.introspection import (
        AsOf,
        LiveToken,
        Simulated,
        TracedDecision,
        WaitsFor,
    )
    from headwater.streams.authoring.inspection import InspectableInstance

_at_option: Final = click.option(
    "--at",
    type=click.IntRange(min=0),
    metavar="SEQUENCE",
    help="As it was after this event of its run. Default: as it is now.",
)
_run_option: Final = click.option(
    "--run", type=click.IntRange(min=0), help="Of this run; the first is 0. Default: the current."
)
_TOKEN_COLUMNS: Final = ("token", "node", "status", "branch", "attempts", "waits for")
_TRACE_COLUMNS: Final = ("sequence", "at", "what", "token", "node", "payload")


@click.command(
    "tokens",
    epilog=examples(
        "headwater instances tokens review/review-1",
        "headwater instances tokens review/review-1 --at 12      as it was then",
        "headwater instances tokens review/review-1 --run 0      before it was retried",
    )
    + ENVIRONMENT,
)
@instance_named
@_at_option
@_run_option
@json_option
@service_options
def tokens(
    service: Service,
    *,
    instance: Named,
    at: int | None,
    run: int | None,
    as_json: bool,
) -> None:
    """Show the tokens of a graph that live, and what each waits for."""
    found = service.ask(lambda client: _looked_into(client, instance, run).introspect_tokens(at))
    if as_json:
        print_answer(found)
        return
    rows = [_token_row(each) for each in found.tokens]
    print_rows(rows, _TOKEN_COLUMNS, title=_title(found), drops=("attempts", "branch"))


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
@json_option
@service_options
def explain(
    service: Service,
    *,
    instance: Named,
    at: int | None,
    run: int | None,
    as_json: bool,
) -> None:
    """Say why an instance of a graph stands where it stands.

    Of each join that waits: who has arrived, who has not and why not, when its time is over and
    what happens then.
    """
    found = service.ask(lambda client: _looked_into(client, instance, run).explain(at))
    if as_json:
        print_answer(found)
        return
    for line in found.says:
        click.echo(line)


@click.command(
    "draw",
    epilog=examples(
        "headwater instances draw review/review-1                       as Mermaid",
        "headwater instances draw review/review-1 --format svg > review.svg",
        "headwater instances draw review/review-1 --at 12               as it was then",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--format", "written", type=click.Choice(["mermaid", "svg"]), default="mermaid",
              show_default=True, help="As what.")  # fmt: skip
@_at_option
@_run_option
@service_options
def draw(
    service: Service,
    instance: Named,
    written: Literal["svg", "mermaid"],
    at: int | None,
    run: int | None,
) -> None:
    """Draw the graph of an instance, with the tokens of its run on it."""
    click.echo(
        service.ask(lambda client: _looked_into(client, instance, run).draw(written, at=at)),
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
@click.option("--node", help="In place of a token: the one at this node.")
@click.option("--output", type=JsonArgument(), help="What its task would give; @FILE, or -.")
@_at_option
@_run_option
@json_option
@service_options
def routing(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    instance: Named,
    token: str | None,
    node: str | None,
    output: Given | None,
    at: int | None,
    run: int | None,
    as_json: bool,
) -> None:
    """Say what would follow if a token completed. Nothing is changed.

    Without --output nothing is mapped: conditions see the context as it stands.
    """
    if (token is None) is (node is None):
        raise click.UsageError("expected --token or --node, found both or neither")

    given = {} if output is None else {"output": output.value}
    found = service.ask(
        lambda client: _looked_into(client, instance, run).simulate_routing(
            token, node=node, at=at, **given
        )
    )
    if as_json:
        print_answer(found)
        return
    rows = [
        {"transition": each.transition_ref, "to": each.to_node_ref, "tokens": each.tokens}
        for each in found.fires
    ]
    print_rows(rows, ("transition", "to", "tokens"), title=_title(found))
    if not rows:
        say(f"Token {found.token.id} would lead nowhere from {found.token.node_ref}.")
    _say_end(found)


@click.command(
    "simulate-synchronization",
    epilog=examples(
        "headwater instances simulate-synchronization review/review-1 --token 3 \\",
        "    --transition meet",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--token", required=True, help="The token that would come.")
@click.option("--transition", required=True, metavar="REF", help="By which it would come.")
@_at_option
@_run_option
@json_option
@service_options
def synchronization(  # noqa: PLR0913 (one parameter a flag; click names them)
    service: Service,
    *,
    instance: Named,
    token: str,
    transition: str,
    at: int | None,
    run: int | None,
    as_json: bool,
) -> None:
    """Say what a join would decide if a token came to it. Nothing is changed."""
    found = service.ask(
        lambda client: _looked_into(client, instance, run).simulate_synchronization(
            token, transition, at=at
        )
    )
    if as_json:
        print_answer(found)
        return
    from msgspec import to_builtins  # noqa: PLC0415 (loads more than --help needs)

    counts = to_builtins(found.counts) if found.counts else {}
    row = {"decision": found.decision, "strategy": found.strategy, **counts}
    print_fields(row.items(), title=_title(found))
    _say_end(found)


@click.command(
    "trace",
    epilog=examples(
        "headwater instances trace review/review-1",
        "headwater instances trace review/review-1 --from 10 --to 20",
        "headwater instances trace review/review-1 --json     with the decisions, whole",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--from", "first", type=click.IntRange(min=0), default=0, show_default=True,
              help="Decisions that begin with this event, or later.")  # fmt: skip
@click.option("--to", "last", type=click.IntRange(min=0), help="The last event to look at.")
@_run_option
@json_option
@service_options
def trace(
    service: Service,
    *,
    instance: Named,
    first: int,
    last: int | None,
    run: int | None,
    as_json: bool,
) -> None:
    """Show how the decisions of a graph came about: each is made again from the history."""

    async def ask(client: "Client") -> "list[TracedDecision]":
        trace = _looked_into(client, instance, run).trace(first, last)
        return [each async for each in trace]

    found = service.ask(ask)
    if as_json:
        print_answer(found)
        return
    rows = [_trace_row(told, each) for each in found for told in each.trace]
    title = f"{instance}"
    print_rows(rows, _TRACE_COLUMNS, title=title, drops=("at", "token"))
    for each in found:
        if not each.same:
            say(f"Another release decided otherwise at {each.sequence}: its events alone are told.")


def _looked_into(client: "Client", instance: Named, run: int | None) -> "InspectableInstance":
    one = instance.of(client)
    return one if run is None else one.in_run(run)


def _title(found: "AsOf") -> str:
    return (
        f"{found.workflow_name}/{found.instance_id}, run {found.run_number}, as of sequence "
        f"{found.sequence} ({moment(found.at)}), definition {found.definition_digest[:8]}"
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
    until = f", until {moment(waits.until)}" if waits.until else ""
    return f"{waits.what}{child if waits.child_instance_id else ''}{worker}{until}"


def _say_end(found: "Simulated") -> None:
    why = f": {found.error.name}: {found.error.message}" if found.error else ""
    say(f"The run would be {found.would_be}{why}. With --json all decisions are there.")


def _trace_row(told: dict[str, Any], decided: "TracedDecision") -> dict[str, Any]:
    return {
        "sequence": told["sequence"],
        "at": moment(decided.at),
        "what": told["type"],
        "token": told["token_id"],
        "node": told["node_ref"],
        "payload": told["payload"],
    }


LOOKS: Final = (tokens, explain, draw, routing, synchronization, trace)
