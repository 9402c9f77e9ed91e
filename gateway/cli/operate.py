"""Commands for operators, over HTTP: dead letters, their replay, and traces of deliveries."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, limit_option, yes_option
from headwater.gateway.cli.orders import Operation, PagedOrder
from headwater.gateway.cli.results import Columns, Result, Table, fields, listing, prints
from headwater.gateway.client.dead_letters import body_of
from headwater.gateway.client.texts import rfc3339

_LETTERS = Columns(
    (
        *("position", "reason", "stage", "original_topic", "event_id"),
        *("dead_at", "replayed_at", "expired_at", "message"),
    ),
    drops=("original_topic", "replayed_at", "stage", "dead_at", "event_id"),
)
#: For listings that include waiting deliveries, which have no position among dead letters.
_STUCK = Columns(
    (
        *("state", "position", "reason", "original_topic", "original_partition"),
        *("original_offset", "event_id", "dead_at", "parked_at", "message"),
    ),
    drops=_LETTERS.drops,
)
_REPLAYED = Columns(("partition", "offset", "topic", "ok", "detail"), drops=("topic",))
#: Stages of a trace.
STAGES = Columns(("at", "after_ms", "stage", "position", "detail"), drops=("after_ms",))


def _position(text: str) -> tuple[int, int]:
    """Parse a dead letter's position, PARTITION/OFFSET."""
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise click.UsageError(f"expected PARTITION/OFFSET, for example 0/17, found {text!r}")
    return int(partition), int(offset)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater dlq list",
        "headwater dlq show 0/17",
        "headwater dlq replay 0/17 2/4",
        "headwater dlq replay --all --reason no_connection_for_terra_user --dry-run",
    ),
)
def dlq() -> None:
    """Look at dead letters and put them back into their topics."""


@dlq.command("list", epilog=examples("headwater dlq list", "headwater dlq list --json | jq ."))
@limit_option(10_000)
@click.option("--after", metavar="CURSOR", help="Continue after an earlier page.")
@click.option("--state", type=click.Choice(["dead", "parked", "all"]), default="dead",
              show_default=True, help="parked: deliveries that wait for their user.")  # fmt: skip
@admin_options
@prints
def list_letters(limit: int, after: str | None, state: str, api: Api) -> Result:
    """List dead letters, waiting deliveries, or both, newest first."""
    page = api.get("/admin/dlq", state=state, limit=limit, after=after)
    columns = _LETTERS if state == "dead" else _STUCK
    none = "There are no dead letters." if state == "dead" else "There are none."
    table = columns.table(map(_with_position, page["rows"]))
    return listing(page, table, none=none, more=page["cursor"], by="--after")


def _with_position(row: dict[str, Any]) -> dict[str, Any]:
    """Add a dead letter's position as `show` and `replay` take it; waiting deliveries have none."""
    dead = row.get("partition") is not None and row.get("offset") is not None
    return {**row, "position": f"{row['partition']}/{row['offset']}" if dead else None}


@dlq.command("show", epilog=examples("headwater dlq show 0/17"))
@click.argument("position", metavar="PARTITION/OFFSET")
@admin_options
@prints
def show_letter(position: str, api: Api) -> Result:
    """Show a dead letter with its headers and, if it can be decoded, its delivery.

    PARTITION/OFFSET is its position in the topic dead-letters, as `headwater dlq list` prints it.
    """
    partition, offset = _position(position)
    letter = api.get(f"/admin/dlq/{partition}/{offset}")
    of_record = ("key", "value", "headers")
    values = [(name, value) for name, value in letter.items() if name not in of_record]
    values += [(f"header {name}", value) for name, value in letter["headers"]]
    return Result(answer=letter, tables=[fields([*values, ("body", _body(letter["value"]))])])


def _body(value: str | None) -> str:
    """Return a dead letter's delivery as text, or its bytes in base64 if there is none."""
    if value is None:
        return ""
    body = body_of(value)
    if body is not None:
        return body.decode(errors="replace")
    return f"{len(base64.b64decode(value))} bytes in base64: {value}"


@dlq.command(
    "replay",
    epilog=examples(
        "headwater dlq replay 0/17 2/4",
        "headwater dlq replay --all --dry-run",
        "headwater dlq replay --all --reason no_connection_for_terra_user",
    ),
)
@click.argument("positions", metavar="[PARTITION/OFFSET]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were never replayed.")
@click.option("--reason", help="With --all: only those of this reason.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and change nothing.")
@yes_option
@admin_options
@prints
def replay_letters(
    positions: tuple[str, ...],
    everything: bool,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    api: Api,
) -> Result:
    """Put dead letters back where they came from, key and value unchanged.

    Name them as PARTITION/OFFSET, or use --all, which prints their number and asks for
    confirmation. Replaying twice is safe: rows converge.
    """
    if everything == bool(positions):
        raise click.UsageError("expected either PARTITION/OFFSET or --all")
    request: Operation = {"all": True, "reason": reason}
    if not everything:
        request = {
            "positions": [{"partition": p, "offset": o} for p, o in map(_position, positions)]
        }
    # Dead letters that were named one by one need no confirmation.
    return _LettersReplay(api, request).carry_out(dry_run=dry_run, yes=yes or not everything)


class _LettersReplay(PagedOrder):
    name, nouns, done = "replay", ("dead letter", "dead letters"), "replayed"

    @override
    def pages(self, *, dry_run: bool) -> Iterator[tuple[Sequence[Any], bool]]:
        after, more = None, True
        while more:
            body = {**self.body, "dry_run": dry_run, "after": after}
            page = self.api.post("/admin/dlq/replay", body)
            after, more = page["next"], page["next"] is not None
            yield page["results"], more

    @override
    def is_refused(self, row: Operation) -> bool:
        return not row["ok"]

    @override
    def answer(self, state: Operation) -> Operation:
        numbers = {"replayed": state["matched"], "failed": state["refused"]}
        return {"dry_run": state["dry_run"], **numbers, "results": state["rows"]}

    @override
    def tables(self, state: Operation) -> Sequence[Table]:
        return [_REPLAYED.table(state["rows"])]


@click.command("show", epilog=examples("headwater trace show 01JZ2Y0W8M3V9Q6T5R4E3W2Q1A"))
@click.argument("request_id")
@admin_options
@prints
def show_trace(request_id: str, api: Api) -> Result:
    """Show the trace of a delivery: every stage, its time, and its result.

    A duplicate of an earlier delivery has a trace of its own, which names the first. So has a
    refused delivery, with the reason.

    REQUEST_ID is the request_id of the gateway's answer, also in its header x-request-id.
    """
    traces = api.get("/admin/traces", request_id=request_id)["traces"]
    if not traces:
        raise click.ClickException(
            f"no delivery with the request id {request_id} is known (yet); a trace is available "
            "after the delivery was processed, skipped, parked, dead-lettered, refused or dropped "
            "as a duplicate"
        )
    known = traces[0]
    user = known["user_id"] or "unknown"
    hints = [f"event {known['event_id']}, user {user}"] if known["event_id"] else []
    return Result(answer=known, tables=[STAGES.table(trace_rows(known["hops"]))], hints=hints)


def trace_rows(hops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stages of a trace as rows to print."""
    began_ms = hops[0]["at_ms"] if hops else 0
    return [
        {
            **hop,
            "at": rfc3339(hop["at_ms"]),
            "after_ms": hop["at_ms"] - began_ms,
        }
        for hop in hops
    ]
