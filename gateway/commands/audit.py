"""`headwater audit`: who has done what, and whether the record of it is still what it was."""

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

from headwater.gateway.commands.api import Api, admin_options
from headwater.gateway.commands.on_demand import Group
from headwater.gateway.commands.options import (
    dsn_of,
    examples,
    json_option,
    kafka_option,
    postgres_option,
    settings_from,
)
from headwater.gateway.commands.output import counted, print_json, print_rows, say
from headwater.gateway.commands.paging import limit_option, say_rest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headwater.gateway.settings import Settings
    from headwater.projections.audit.verifying import Verification
    from headwater.projections.postgres.reader import PooledReader

_COLUMNS: Final = ("createdAt", "action", "resource", "result", "keyId", "ip", "runId", "offset")
#: What a narrow terminal does without, the first one first.
_DROPS: Final = ("offset", "ip", "runId", "keyId", "result")
#: Rows that are written at a time.
_PAGE: Final = 1000
_ANCHOR: Final = re.compile(r"([0-9]{1,18}):([0-9a-fA-F]{64})")


@click.group(
    cls=Group,
    epilog=examples(
        "headwater audit list --action users.wipe",
        "headwater audit verify",
        "headwater audit verify --anchor 1200:9f86d081884c7d65…",
        "headwater audit export > audit.ndjson",
    ),
)
def audit() -> None:
    """Look at who has done what, and verify that nobody has changed the record of it."""


@audit.command(
    "list", epilog=examples("headwater audit list", "headwater audit list --result failure --json")
)
@click.option("--action", help="Only those of this action, as deployments.activate.")
@click.option("--result", type=click.Choice(["success", "failure"]), help="Only those.")
@click.option("--key-id", metavar="ID", help="Only those of this key, as admin:9f86d081.")
@click.option("--run-id", metavar="ID", help="Only those that touched this run.")
@click.option("--since", metavar="RFC3339", help="Only those since then.")
@click.option("--until", metavar="RFC3339", help="Only those before.")
@limit_option(1000)
@click.option("--cursor", metavar="CURSOR", help="Go on after an earlier page.")
@admin_options
@json_option
def list_entries(
    api: Api,
    as_json: bool,
    key_id: str | None,
    run_id: str | None,
    **filters: str | int | None,
) -> None:
    """List entries, the newest first."""
    page = api.get("/v1/audit", keyId=key_id, runId=run_id, **filters)
    if as_json:
        print_json(page)
        return
    rows = [{**row, "runId": _run_of(row["metadata"])} for row in page["entries"]]
    print_rows(rows, _COLUMNS, drops=_DROPS)
    say_rest(rows, page["cursor"], none="There are none.")


def _run_of(metadata: Mapping[str, Any]) -> str | None:
    """The run of an entry; the first one of several, with the number of the others."""
    several: list[str] = metadata.get("runIds") or []
    if not several:
        return metadata.get("runId")
    return several[0] if len(several) == 1 else f"{several[0]} and {len(several) - 1} more"


class Anchor(click.ParamType):
    """A hash that was kept elsewhere, OFFSET:HASH."""

    name = "OFFSET:HASH"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bytes]:
        if isinstance(value, tuple):
            return value
        found = _ANCHOR.fullmatch(str(value))
        if found is None:
            self.fail(f"expected OFFSET:HASH as `audit verify` prints the head, found {value!r}")
        return int(found[1]), bytes.fromhex(found[2])


@audit.command(
    epilog=examples(
        "headwater audit verify",
        "headwater audit verify --anchor 1200:9f86d081884c7d65…    a head that was kept elsewhere",
        "headwater audit verify --json",
    )
)
@click.option("--anchor", "anchors", type=Anchor(), multiple=True,
              help="A head that an earlier verify has printed; repeatable.")  # fmt: skip
@kafka_option
@postgres_option
@json_option
def verify(
    anchors: tuple[tuple[int, bytes], ...], kafka: str | None, postgres: str | None, as_json: bool
) -> None:
    """Compare the rows of the audit log with the log itself; exit code 1 when something differs.

    It reads Kafka and Postgres, and asks no gateway. Keep the head that it prints where nobody can
    change it who could write to both: --anchor compares with it.
    """
    settings = settings_from(kafka=kafka, postgres=postgres)
    found = asyncio.run(_verified(settings, dict(anchors)))
    if as_json:
        print_json(_as_json(found))
    else:
        _report(found)
    if found.found:
        raise click.exceptions.Exit(1)


def _as_json(found: "Verification") -> dict[str, Any]:
    return {
        "entries": found.entries,
        "unreadable": found.unreadable,
        "head": _head(found),
        "found": found.found,
        "findings": [{"offset": each.offset, "what": each.what} for each in found.findings],
    }


def _head(found: "Verification") -> str | None:
    return f"{found.offset}:{found.head.hex()}" if found.entries else None


def _report(found: "Verification") -> None:
    if found.found:
        rows = [{"offset": each.offset, "what": each.what} for each in found.findings]
        print_rows(rows, ("offset", "what"), title=counted(found.found, "finding"))
    else:
        say(f"{counted(found.entries, 'entry', 'entries')}, all as written.")
    if found.unreadable:
        say(f"{counted(found.unreadable, 'record')} of the log cannot be read, and have no row.")
    if found.entries:
        sys.stdout.write(f"head {_head(found)}\n")


async def _verified(settings: "Settings", anchors: dict[int, bytes]) -> "Verification":
    from headwater.gateway.commands.cluster import cluster_of  # noqa: PLC0415 (loads slowly)
    from headwater.projections.audit.queries import between, next_offset  # noqa: PLC0415
    from headwater.projections.audit.verifying import LogEntry, Verification  # noqa: PLC0415
    from headwater.schemas.topics import AUDIT  # noqa: PLC0415
    from headwater.streams.kafka.partition_reader import read_partition  # noqa: PLC0415
    from headwater.streams.pipeline.audit_log import PARTITION  # noqa: PLC0415

    cluster = cluster_of(settings)
    async with _rows(settings) as reader:
        verification = Verification(await next_offset(reader), anchors)
        last = -1
        async with aclosing(read_partition(cluster, [AUDIT], PARTITION)) as batches:
            async for records in batches:
                rows = await between(reader, last + 1, records[-1].offset)
                last = records[-1].offset
                verification.compare([LogEntry(each.offset, each.value) for each in records], rows)
        beyond = await between(reader, last + 1, limit=_PAGE)
        # Those that were appended meanwhile are no finding.
        async for records in read_partition(cluster, [AUDIT], PARTITION, start=last + 1):
            last = records[-1].offset
        verification.report_unmatched([row for row in beyond if row.entry.offset > last])
        verification.finish()
    return verification


@asynccontextmanager
async def _rows(settings: "Settings") -> "AsyncIterator[PooledReader]":
    from headwater.projections.postgres.reader import PooledReader  # noqa: PLC0415 (loads slowly)

    reader = PooledReader(dsn_of(settings))
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


@audit.command(
    epilog=examples(
        "headwater audit export > audit.ndjson",
        "headwater audit export --after 1200 >> audit.ndjson    what came since",
    )
)
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="OFFSET",
              help="Only entries behind this one.")  # fmt: skip
@postgres_option
def export(after: int, postgres: str | None) -> None:
    """Write all entries to standard output, the oldest first, a JSON object a line.

    Without its member `hash`, and with the others in order and no spaces, a line is what was
    hashed: SHA-256 of the hash of the line before, as bytes, and of that.
    """
    written = asyncio.run(_exported(settings_from(postgres=postgres), after))
    say(counted(written, "entry", "entries"))


async def _exported(settings: "Settings", after: int) -> int:
    import msgspec  # noqa: PLC0415 (loads slowly)

    from headwater.projections.audit.queries import between  # noqa: PLC0415

    written = 0
    async with _rows(settings) as reader:
        while page := await between(reader, after + 1, limit=_PAGE):
            for row in page:
                line = {**msgspec.structs.asdict(row.entry), "hash": row.hash.hex()}
                encoded = msgspec.json.encode(line, order="sorted")
                sys.stdout.write(f"{encoded.decode()}\n")
            after = page[-1].entry.offset
            written += len(page)
    return written
