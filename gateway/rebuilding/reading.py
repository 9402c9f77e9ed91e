"""Reads deliveries for a rebuild in processes of their own: what needs no state of partitions.

The processes end with the one that they read for: nobody takes what they write.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NoReturn, cast

import msgspec
import uvloop

from headwater.gateway.commands.cluster import cluster_of
from headwater.gateway.commands.process import begin_service
from headwater.gateway.environment import environment, load_settings
from headwater.gateway.settings import Settings
from headwater.gateway.sources import sources_of
from headwater.processors.providers.placement import Placement
from headwater.processors.sources import providers_of
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.tables import Table
from headwater.streams.garbage import collect_seldom
from headwater.streams.pipeline.rebuild_reader import Chunk, RebuildReader, Span, read_here

log = logging.getLogger("headwater.rebuild")

#: Deliveries for which it is worth while to start processes; that takes a second.
_WORTHWHILE: Final = 20_000
#: More would wait for the process that has the state: it has a third of one's work a delivery.
_READERS_MAX: Final = 4
_LENGTH_BYTES: Final = 4
#: What a process may be ahead, in bytes of what it has found.
_AHEAD_BYTES: Final = 4 * 1024 * 1024

_chunk: Final = msgspec.msgpack.Decoder(Chunk).decode
_encoded: Final = msgspec.msgpack.Encoder().encode


class Wanted(msgspec.Struct, frozen=True):
    """What a process is to read, as it is told on its command line."""

    table: str
    partitions: int
    spans: list[Span]


def placement_of(settings: Settings) -> Placement:
    """What the settings say of providers and users."""
    return Placement(providers_of(sources_of(settings)), settings.user_prefix)


def readers_of(
    settings: Settings, reading: RebuildReader, table: Table, partitions: int, spans: Sequence[Span]
) -> list[AsyncGenerator[Chunk]]:
    """Readers of spans: a process for each core, where they have enough to do."""
    count = min(os.cpu_count() or 1, len(spans), _READERS_MAX)
    left = sum(span.end - span.start for span in spans)
    if reading.passes_on or count <= 1 or left < _WORTHWHILE:
        return [read_here(cluster_of(settings), reading, spans)]
    return [
        read_beside(settings, Wanted(table.name, partitions, list(spans[number::count])))
        for number in range(count)
    ]


async def read_beside(settings: Settings, wanted: Wanted) -> AsyncGenerator[Chunk]:
    """Reads partitions one after the other, in a process of its own.

    Errors: BrokerUnavailable, also if the process ends before it has read all of them.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.gateway.rebuilding.reading"),
        msgspec.json.encode(wanted).decode(),
        env={**os.environ, **environment(settings)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=_AHEAD_BYTES,
    )
    found = cast("asyncio.StreamReader", process.stdout)
    try:
        while size := int.from_bytes(await found.readexactly(_LENGTH_BYTES)):
            yield _chunk(await found.readexactly(size))
    except asyncio.IncompleteReadError as error:
        raise BrokerUnavailable(
            f"expected the deliveries of {wanted.spans}, found that the process which reads them "
            f"ended with {await process.wait()}"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read(settings: Settings, wanted: Wanted) -> int:
    """Writes what was found while more is read; nothing says that there is no more."""
    reading = RebuildReader(placement_of(settings), wanted.partitions, TABLE_BY_NAME[wanted.table])
    writing: asyncio.Future[None] | None = None
    try:
        async for chunk in read_here(cluster_of(settings), reading, wanted.spans):
            data = _encoded(chunk)
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(asyncio.to_thread(_write, data))
        if writing is not None:
            await writing
        _write(b"")
    except BrokenPipeError:
        return os.EX_TEMPFAIL
    except HeadwaterError as error:
        log.warning("%s", error.message)
        return os.EX_TEMPFAIL
    return os.EX_OK


def _write(data: bytes) -> None:
    left = memoryview(len(data).to_bytes(_LENGTH_BYTES) + data)
    while left:
        left = left[os.write(sys.stdout.fileno(), left) :]


def main() -> NoReturn:
    """Runs; the argument says what to read."""
    settings = load_settings()
    begin_service(settings)
    collect_seldom()
    sys.exit(uvloop.run(_read(settings, msgspec.json.decode(sys.argv[1], type=Wanted))))


if __name__ == "__main__":
    main()
