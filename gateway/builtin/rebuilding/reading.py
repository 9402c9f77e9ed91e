"""Read and normalize deliveries for a rebuild in child processes, without partition state.

The child processes exit with their parent, because their pipe is closed.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NoReturn, cast

import msgspec
import uvloop

from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.environment import environment, load_settings
from headwater.gateway.settings.process import begin_service
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_of
from headwater.processors.providers.provider import Placement
from headwater.processors.sources import providers_of
from headwater.schemas.errors import BrokerUnavailable, HeadwaterError
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.schemas.tables import Table
from headwater.streams.pipeline.rebuild_reader import Chunk, RebuildReader, Span, read_here
from headwater.streams.process_tuning import collect_seldom

log = logging.getLogger("headwater.rebuild")

#: Deliveries that justify starting processes, which takes a second.
_WORTHWHILE: Final = 20_000
#: More readers would wait for the parent, which needs a third of a reader's time for a delivery.
_READERS_MAX: Final = 4
_LENGTH_BYTES: Final = 4
#: How far a reader may be ahead of the parent, in bytes of results.
_AHEAD_BYTES: Final = 4 * 1024 * 1024

_chunk: Final = msgspec.msgpack.Decoder(Chunk).decode
_encoded: Final = msgspec.msgpack.Encoder().encode


class ReadRequest(msgspec.Struct, frozen=True):
    """What a child process reads; passed on its command line as JSON."""

    table: str
    partitions: int
    spans: list[Span]


def placement_of(settings: Settings) -> Placement:
    """Return the placement for the providers and the user prefix of the settings."""
    return Placement(providers_of(sources_of(settings)), settings.user_prefix)


def readers_of(
    settings: Settings, reading: RebuildReader, table: Table, partitions: int, spans: Sequence[Span]
) -> list[AsyncGenerator[Chunk]]:
    """Return readers of spans: child processes if there is enough to read, else one in-process."""
    count = min(os.cpu_count() or 1, len(spans), _READERS_MAX)
    remaining = sum(span.end - span.start for span in spans)
    if reading.passes_on or count <= 1 or remaining < _WORTHWHILE:
        return [read_here(cluster_of(settings), reading, spans)]
    return [
        read_in_child(settings, ReadRequest(table.name, partitions, list(spans[number::count])))
        for number in range(count)
    ]


async def read_in_child(settings: Settings, request: ReadRequest) -> AsyncGenerator[Chunk]:
    """Read partitions one after the other, in a child process.

    Raises:
        BrokerUnavailable: Kafka is down, or the process exited early.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.gateway.builtin.rebuilding.reading"),
        msgspec.json.encode(request).decode(),
        env={**os.environ, **environment(settings)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=_AHEAD_BYTES,
    )
    output = cast("asyncio.StreamReader", process.stdout)
    try:
        while size := int.from_bytes(await output.readexactly(_LENGTH_BYTES)):
            yield _chunk(await output.readexactly(size))
    except asyncio.IncompleteReadError as error:
        raise BrokerUnavailable(
            f"the process that reads the deliveries of {request.spans} exited with "
            f"{await process.wait()}"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read(settings: Settings, request: ReadRequest) -> int:
    """Write results while the next ones are read; an empty chunk marks the end."""
    reading = RebuildReader(
        placement_of(settings), request.partitions, TABLE_BY_NAME[request.table]
    )
    writing: asyncio.Future[None] | None = None
    try:
        async for chunk in read_here(cluster_of(settings), reading, request.spans):
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
    """Run the `ReadRequest` in the command-line argument."""
    settings = load_settings()
    begin_service(settings, "rebuild-reader")
    collect_seldom()
    sys.exit(uvloop.run(_read(settings, msgspec.json.decode(sys.argv[1], type=ReadRequest))))


if __name__ == "__main__":
    main()
