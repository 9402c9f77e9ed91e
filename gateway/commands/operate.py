"""What operators do, all over HTTP: dead letters, their replay, and the journey of a delivery."""

import base64
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from headwater.gateway.commands.api import Api, admin_options
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import examples, json_option
from headwater.gateway.commands.output import counted, print_fields, print_json, print_rows, say
from headwater.gateway.commands.paging import limit_option, say_rest
from headwater.gateway.commands.times import rfc3339
from headwater.schemas.codec import decode
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.records import WebhookAdmitted, WebhookReceived

_LETTER_COLUMNS = (
    "place",
    "reason",
    "stage",
    "original_topic",
    "event_id",
    "dead_at",
    "replayed_at",
    "expired_at",
    "message",
)

#: Of deliveries that wait, too, which are no dead letters and so have no place among them.
_STUCK_COLUMNS = (
    "state",
    "place",
    "reason",
    "original_topic",
    "original_partition",
    "original_offset",
    "event_id",
    "dead_at",
    "parked_at",
    "message",
)

#: What a narrow terminal does without, the first one first.
_LETTER_DROPS = ("original_topic", "replayed_at", "stage", "dead_at", "event_id")


def _place(text: str) -> tuple[int, int]:
    """Reads a dead letter's place, PARTITION/OFFSET."""
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
@click.option("--after", metavar="CURSOR", help="Go on after the cursor of an earlier page.")
@click.option("--state", type=click.Choice(["dead", "parked", "all"]), default="dead",
              show_default=True, help="parked: deliveries that wait for their user.")  # fmt: skip
@admin_options
@json_option
def list_letters(
    limit: int,
    after: str | None,
    state: str,
    api: Api,
    as_json: bool,
) -> None:
    """List dead letters, deliveries that wait, or both, the newest first."""
    page = api.get("/admin/dlq", state=state, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    columns = _LETTER_COLUMNS if state == "dead" else _STUCK_COLUMNS
    print_rows([_with_place(row) for row in page["rows"]], columns, drops=_LETTER_DROPS)
    none = "There are no dead letters." if state == "dead" else "There are none."
    say_rest(page["rows"], page["cursor"], none=none, by="--after")


def _with_place(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with its place as `show` and `replay` take it; what only waits has none."""
    placed = row.get("partition") is not None and row.get("offset") is not None
    return {**row, "place": f"{row['partition']}/{row['offset']}" if placed else None}


@dlq.command("show", epilog=examples("headwater dlq show 0/17"))
@click.argument("place", metavar="PARTITION/OFFSET")
@admin_options
@json_option
def show_letter(place: str, api: Api, as_json: bool) -> None:
    """Show one dead letter with its headers and, if it can be read, the delivery in it.

    PARTITION/OFFSET is its place in the topic dead-letters, as `headwater dlq list` prints it.
    """
    partition, offset = _place(place)
    letter = api.get(f"/admin/dlq/{partition}/{offset}")
    if as_json:
        print_json(letter)
        return
    of_record = ("key", "value", "headers")
    fields = [(name, value) for name, value in letter.items() if name not in of_record]
    fields += [(f"header {name}", value) for name, value in letter["headers"]]
    print_fields([*fields, ("body", _body(letter["value"]))])


def _body(value: str | None) -> str:
    """The delivery in a dead letter as text; the bytes in base64 if there is none."""
    if value is None:
        return ""
    data = base64.b64decode(value)
    with contextlib.suppress(UndecodableRecord, UnknownSchema):
        return decode(data, WebhookReceived).body.decode(errors="replace")
    with contextlib.suppress(UndecodableRecord, UnknownSchema):
        return decode(data, WebhookAdmitted).body.decode(errors="replace")
    return f"{len(data)} bytes in base64: {value}"


@dlq.command(
    "replay",
    epilog=examples(
        "headwater dlq replay 0/17 2/4",
        "headwater dlq replay --all --dry-run",
        "headwater dlq replay --all --reason no_connection_for_terra_user",
    ),
)
@click.argument("places", metavar="[PARTITION/OFFSET]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were never replayed.")
@click.option("--reason", help="With --all: only those of this reason.")
@click.option("--dry-run", is_flag=True, help="Say what would be replayed, and do nothing.")
@click.option("--yes", is_flag=True, help="With --all: do not ask.")
@admin_options
@json_option
def replay_letters(  # noqa: PLR0913, PLR0917 (one parameter a flag; click names them)
    places: tuple[str, ...],
    everything: bool,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    api: Api,
    as_json: bool,
) -> None:
    """Put dead letters back where they came from, key and value untouched.

    Name them as PARTITION/OFFSET, or take --all, which says how many there are and asks. Replaying
    twice is safe: rows converge.
    """
    if everything == bool(places):
        raise click.UsageError("expected either PARTITION/OFFSET or --all")
    asked: dict[str, Any] = {"all": True, "reason": reason}
    if not everything:
        asked = {"positions": [{"partition": p, "offset": o} for p, o in map(_place, places)]}
    elif not (dry_run or yes):
        count = sum(page["replayed"] for page in _replayed(api, asked | {"dry_run": True}))
        if count and not sys.stdin.isatty():
            found = f"{counted(count, 'dead letter')} would be replayed"
            raise click.UsageError(
                f"expected --yes, or a terminal to ask at, found neither: {found}"
            )
        if count:
            click.confirm(f"Replay {counted(count, 'dead letter')}?", abort=True, err=True)
    pages = list(_replayed(api, asked | {"dry_run": dry_run}))
    results = [result for page in pages for result in page["results"]]
    done, failed = (sum(page[name] for page in pages) for name in ("replayed", "failed"))
    if as_json:
        print_json({"dry_run": dry_run, "replayed": done, "failed": failed, "results": results})
    else:
        print_rows(results, ("partition", "offset", "topic", "ok", "detail"), drops=("topic",))
        say(f"{done} {'would be replayed' if dry_run else 'replayed'}, {failed} not.")
    if failed:
        raise click.exceptions.Exit(1)


def _replayed(api: Api, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What came of a replay, page by page, until there is no more."""
    after = None
    while True:
        page: dict[str, Any] = api.post("/admin/dlq/replay", asked | {"after": after})
        yield page
        after = page["next"]
        if after is None:
            return


@click.command(epilog=examples("headwater trace 01JZ2Y0W8M3V9Q6T5R4E3W2Q1A"))
@click.argument("request_id")
@admin_options
@json_option
def trace(request_id: str, api: Api, as_json: bool) -> None:
    """Show the journey of a delivery: every stage, when, and what was decided there.

    A copy of a delivery that was admitted before has a journey of its own, which names the first.
    So has a delivery that was refused, with the reason.

    REQUEST_ID is the request_id of the gateway's answer, also in its header x-request-id.
    """
    found = api.get("/admin/traces", request_id=request_id)["traces"]
    if not found:
        raise click.ClickException(
            f"no delivery with the request id {request_id} is known (yet); a journey can be seen "
            "once the delivery was processed, skipped, parked, dead-lettered, refused or dropped "
            "as a copy"
        )
    if as_json:
        print_json(found[0])
        return
    if found[0]["event_id"]:
        say(f"event {found[0]['event_id']}, user {found[0]['user_id'] or 'unknown'}")
    print_rows(
        journey_rows(found[0]["hops"]),
        ("at", "after_ms", "stage", "position", "detail"),
        drops=("after_ms",),
    )


def journey_rows(hops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages of a journey as rows to print."""
    began_ms = hops[0]["at_ms"] if hops else 0
    return [
        {
            **hop,
            "at": rfc3339(hop["at_ms"]),
            "after_ms": hop["at_ms"] - began_ms,
        }
        for hop in hops
    ]
