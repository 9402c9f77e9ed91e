"""`headwater audit`: list, verify and export the audit log."""

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    examples,
    kafka_option,
    limit_option,
    postgres_option,
    settings_from,
)
from headwater.gateway.cli.output import counted, say
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.settings.database import dsn_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headwater.gateway.settings.settings import Settings
    from headwater.projections.audit import Chained, Head, Verification
    from headwater.projections.postgres.connections import PooledReader

_LISTED: Final = Columns(
    ("createdAt", "action", "resource", "result", "keyId", "ip", "runId", "offset"),
    drops=("offset", "ip", "runId", "keyId", "result"),
)
_FOUND: Final = Columns(("offset", "what"))
#: Rows of a query.
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
    """Show who has done what, and verify that the audit log was not changed."""


@audit.command(
    "list", epilog=examples("headwater audit list", "headwater audit list --result failure --json")
)
@click.option("--project", metavar="NAME", help="The gateway's project; others are refused.")
@click.option("--action", help="Only this action, as deployments.activate.")
@click.option(
    "--result", type=click.Choice(["attempted", "success", "failure"]), help="Only this result."
)
@click.option("--key-id", metavar="ID", help="Only this key, as admin:9f86d081.")
@click.option("--run-id", metavar="ID", help="Only entries that concern this run.")
@click.option("--since", metavar="RFC3339", help="Only entries since this time.")
@click.option("--until", metavar="RFC3339", help="Only entries before this time.")
@limit_option(1000)
@click.option("--cursor", metavar="CURSOR", help="Continue after an earlier page.")
@admin_options
@prints
def list_entries(
    api: Api,
    project: str | None,
    key_id: str | None,
    run_id: str | None,
    **filters: str | int | None,
) -> Result:
    """List entries, newest first."""
    page = api.get("/v1/audit", projectId=project, keyId=key_id, runId=run_id, **filters)
    table = _LISTED.table({**row, "runId": _run_of(row["metadata"])} for row in page["entries"])
    return listing(page, table, none="There are none.", more=page["cursor"])


def _run_of(metadata: Mapping[str, Any]) -> str | None:
    """Return an entry's run; of several, the first and the number of the others."""
    several: list[str] = metadata.get("runIds") or []
    if not several:
        return metadata.get("runId")
    return several[0] if len(several) == 1 else f"{several[0]} and {len(several) - 1} more"


class Anchor(click.ParamType):
    """Parameter type of a hash that was kept elsewhere, OFFSET:HASH."""

    name = "OFFSET:HASH"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bytes]:
        if isinstance(value, tuple):
            return value
        match = _ANCHOR.fullmatch(str(value))
        if match is None:
            self.fail(f"expected OFFSET:HASH as `audit verify` prints the head, found {value!r}")
        return int(match[1]), bytes.fromhex(match[2])


@audit.command(
    epilog=examples(
        "headwater audit verify",
        "headwater audit verify --anchor 1200:9f86d081884c7d65…    a head that you kept",
        "headwater audit verify --json",
    )
)
@click.option("--anchor", "anchors", type=Anchor(), multiple=True,
              help="A head that an earlier verify printed; repeatable.")  # fmt: skip
@kafka_option
@postgres_option
@prints
def verify(
    anchors: tuple[tuple[int, bytes], ...], kafka: str | None, postgres: str | None
) -> Result:
    """Compare the rows of the audit log with the log itself; exit code 1 when something differs.

    Also when a record cannot be read, or a checkpoint states another hash or was not signed with
    HEADWATER_AUDIT_KEYS. Reads Kafka and Postgres, and needs no gateway. Keep the printed heads
    where writers of Kafka and Postgres cannot change them: --anchor compares with them.
    """
    settings = settings_from(kafka=kafka, postgres=postgres)
    verification = asyncio.run(_verified(settings, dict(anchors)))
    rows = [{"offset": finding.offset, "what": finding.what} for finding in verification.findings]
    answer = {
        "entries": verification.entries,
        "unreadable": verification.unreadable,
        "head": _head(verification),
        "heads": {name: _shown(head) for name, head in sorted(verification.heads.items())},
        "checkpoints": {
            "signed": verification.signed,
            "signedTo": verification.signed_to if verification.signed else None,
            "unverified": verification.unverified,
        },
        "found": verification.found,
        "findings": rows,
    }
    if verification.found:
        tables, hints = [_FOUND.table(rows, counted(verification.found, "finding"))], []
    else:
        entries = counted(verification.entries, "entry", "entries")
        tables, hints = [], [f"{entries}: the rows are those of the log.", *_proof(verification)]
    return Result(
        answer=answer,
        tables=tables,
        text="".join(
            f"head {_shown(head)}{f' {name}' if len(verification.heads) > 1 else ''}\n"
            for name, head in sorted(verification.heads.items())
        ),
        hints=hints,
        failed=bool(verification.found),
    )


def _head(verification: "Verification") -> str | None:
    return f"{verification.offset}:{verification.head.hex()}" if verification.entries else None


def _shown(head: "Head") -> str:
    return f"{head.offset}:{head.hash.hex()}"


def _proof(verification: "Verification") -> list[str]:
    """Return what a verification without findings proves about the log itself."""
    if verification.signed:
        checkpoints = counted(verification.signed, "signed checkpoint")
        return [
            f"{checkpoints}: the log up to {verification.signed_to} was not rewritten without a "
            "key. Of later entries only a kept head (--anchor) proves that."
        ]
    return [
        "That the log itself was not rewritten is proven only by a kept head (--anchor): "
        + (
            f"{counted(verification.unverified, 'checkpoint')} without a verified signature; set "
            "HEADWATER_AUDIT_KEYS."
            if verification.unverified
            else "there is no checkpoint yet."
        )
    ]


async def _verified(settings: "Settings", anchors: dict[int, bytes]) -> "Verification":
    from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (loads slowly)
    from headwater.projections.audit import LogEntry, Verification, between, next_offset  # noqa: PLC0415  # noqa: PLC0415
    from headwater.schemas.topics import AUDIT  # noqa: PLC0415
    from headwater.streams.kafka.readers import read_partition  # noqa: PLC0415
    from headwater.streams.pipeline.request_logs import PARTITION  # noqa: PLC0415

    cluster = cluster_of(settings)
    async with _rows(settings) as reader:
        keys = [key.get_secret_value() for key in settings.audit_keys]
        verification = Verification(await next_offset(reader), anchors, keys)
        last = -1
        async with aclosing(read_partition(cluster, [AUDIT], PARTITION)) as batches:
            async for records in batches:
                rows = await between(reader, last + 1, records[-1].offset)
                last = records[-1].offset
                verification.compare(
                    [LogEntry(record.offset, record.value) for record in records], rows
                )
        beyond = await between(reader, last + 1, limit=_PAGE)
        # Rows of records that were appended meanwhile are no finding.
        async for records in read_partition(cluster, [AUDIT], PARTITION, start=last + 1):
            last = records[-1].offset
        verification.report_unmatched([row for row in beyond if row.entry.offset > last])
        verification.finish()
    return verification


@asynccontextmanager
async def _rows(settings: "Settings") -> "AsyncIterator[PooledReader]":
    from headwater.projections.postgres.connections import PooledReader  # noqa: PLC0415 (loads slowly)

    reader = PooledReader(dsn_of(settings))
    await reader.open()
    try:
        yield reader
    finally:
        await reader.close()


@audit.command(
    epilog=examples(
        "headwater audit export > audit.ndjson",
        "headwater audit export --after 1200 >> audit.ndjson    the entries since",
        "headwater audit export --project shop > shop.ndjson",
    )
)
@click.option("--project", metavar="NAME", help="Only entries of this project.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="OFFSET",
              help="Only entries after this one.")  # fmt: skip
@postgres_option
def export(after: int, project: str | None, postgres: str | None) -> None:
    """Write all entries to standard output, oldest first, a JSON object a line.

    Without its member `hash`, and with the others in order and no spaces, a line is what was
    hashed: SHA-256 of the hash of the project's previous line, as bytes, followed by the line.
    Every hash is computed again; at one that differs, the export ends with exit code 1.
    """
    written = asyncio.run(_exported(settings_from(postgres=postgres), after, project))
    say(counted(written, "entry", "entries"))


def _check_hash(row: "Chained", heads: dict[str, bytes]) -> None:
    """Check a row against the hash before it, and remember its own.

    Raises:
        click.ClickException: The row or its hash was changed.
    """
    from headwater.projections.audit import GENESIS, linked  # noqa: PLC0415 (loads slowly)

    project = row.entry.project_id or ""
    if linked(heads.get(project, GENESIS), row.entry) != row.hash:
        raise click.ClickException(
            f"the entry {row.entry.id} at {row.entry.offset}, or one before it, was changed or is "
            "missing: its hash is another one; run `headwater audit verify`"
        )
    heads[project] = row.hash


async def _exported(settings: "Settings", after: int, project: str | None) -> int:
    import msgspec  # noqa: PLC0415 (loads slowly)

    from headwater.projections.audit import between, heads_at  # noqa: PLC0415

    written = 0
    async with _rows(settings) as reader:
        heads = await heads_at(reader, after) if after >= 0 else {}
        while page := await between(reader, after + 1, limit=_PAGE, project_id=project):
            for row in page:
                _check_hash(row, heads)
                line = {**msgspec.structs.asdict(row.entry), "hash": row.hash.hex()}
                encoded = msgspec.json.encode(line, order="sorted")
                sys.stdout.write(f"{encoded.decode()}\n")
            after = page[-1].entry.offset
            written += len(page)
    return written
