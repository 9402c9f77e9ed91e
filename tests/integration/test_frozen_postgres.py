"""Goal: a Postgres that freezes holds up no reader for longer than its limit."""

import asyncio
import contextlib
import signal
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # its stubs are not among our packages
import pytest

from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.schemas.errors import StoreUnavailable
from tests.suspended import wait_until_stopped

LIMIT_S = 1.0
PATIENCE_S = 60.0


def tell(postgres: EmbeddedPostgres, number: signal.Signals) -> None:
    """Signals all processes of the server."""
    server = psutil.Process(postgres.pid)
    for process in (server, *server.children()):
        # Workers of the server come and go.
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            process.send_signal(number)
            if number == signal.SIGSTOP:
                wait_until_stopped(process.pid)


async def fails_in_time(reader: PooledReader, freeze: EmbeddedPostgres | None = None) -> None:
    async with asyncio.timeout(PATIENCE_S), reader.connection() as connection:
        if freeze is not None:
            tell(freeze, signal.SIGSTOP)
        await connection.execute("select 1")


def test_a_read_under_way_is_answered_within_its_limit(scratch: Path):
    postgres = EmbeddedPostgres(scratch / "frozen postgres", report=lambda _: None)

    async def read() -> None:
        async with PooledReader(postgres.start(), answer_timeout_s=LIMIT_S) as reader:
            assert await reader.answers(b"select 1 as one") == [{"one": 1}]
            for freeze in (postgres, None):
                with pytest.raises(StoreUnavailable):
                    await fails_in_time(reader, freeze)
            tell(postgres, signal.SIGCONT)
            async with asyncio.timeout(60):
                while not await answers(reader):
                    pass

    try:
        asyncio.run(read())
    finally:
        postgres.kill()


async def answers(reader: PooledReader) -> bool:
    try:
        return await reader.answers(b"select 1 as one") == [{"one": 1}]
    except StoreUnavailable:
        return False
