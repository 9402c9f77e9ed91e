"""Sees that rebuilds that were asked for are carried out: in turns, in a process each."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Final

from headwater.gateway.environment import environment
from headwater.gateway.rebuilding.stores import folder_of, forget_wiped
from headwater.gateway.settings import Settings
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.projector.log_ends import pause
from headwater.projections.rebuilds.rebuilds import under_way
from headwater.schemas.errors import StoreUnavailable

log = logging.getLogger("headwater.rebuild")

_LOOK_EVERY_S: Final = 1.0
#: After one that failed, or that another projector carries out.
_AGAIN_AFTER_S: Final = 3.0
_LEAVE_S: Final = 10.0


async def carry_out_rebuilds(
    settings: Settings, stop: asyncio.Event, dsn_of: Callable[[Settings], str]
) -> None:
    """Carries out what is asked for until `stop` is set; what is under way then goes on later."""
    reader = PooledReader(dsn_of(settings))
    await reader.open()
    try:
        while not stop.is_set():
            wanted: list[str] = []
            with contextlib.suppress(StoreUnavailable):
                wanted = await under_way(reader)
                if not wanted:
                    await forget_wiped(reader, folder_of(settings))
            pause_s = _LOOK_EVERY_S
            for rebuild_id in wanted:
                if not stop.is_set() and await _carry_out(settings, rebuild_id, stop):
                    pause_s = _AGAIN_AFTER_S
            await pause(stop, pause_s)
    finally:
        await reader.close()


async def _carry_out(settings: Settings, rebuild_id: str, stop: asyncio.Event) -> int:
    """Runs a process until it ends; returns its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.gateway.rebuilding", rebuild_id),
        env={**os.environ, **environment(settings)},
        stdin=asyncio.subprocess.DEVNULL,
    )
    ending = asyncio.create_task(process.wait())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            process.terminate()
            await asyncio.wait({ending}, timeout=_LEAVE_S)
    finally:
        stopping.cancel()
        if process.returncode is None:
            process.kill()
    code = await ending
    if code and not stop.is_set():
        log.warning("the rebuild %s ended with %d; it goes on in a moment", rebuild_id, code)
    return code
