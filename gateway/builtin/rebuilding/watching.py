"""Run requested rebuilds in child processes, and delete outdated local stores."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headwater.gateway.settings.environment import environment
from headwater.gateway.settings.settings import Settings
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.projector.truncation import pause
from headwater.projections.rebuilds.rebuilds import Wipes, are_locked, under_way, wipes_known
from headwater.schemas.errors import StoreUnavailable

#: File with the wipes that existed when the stores in the same folder were created.
_BEGUN: Final = "begun-after"


def folder_of(settings: Settings) -> Path:
    """Return the folder of all rebuilds, with one folder per rebuild."""
    return settings.state_dir / "rebuilds"


def note_wipes(stores: Path, wipes: Wipes) -> None:
    """Record the existing wipes in a folder of stores, unless it was created before."""
    stores.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = stores / _BEGUN
    if not note.exists():
        note.write_text(_text(wipes))


async def delete_outdated(reader: PooledReader, folder: Path) -> None:
    """Delete the stores that were created before a wipe. Call it only while no rebuild runs.

    Stores contain data of all users. A switch without a store computes the rows again.

    Raises:
        StoreUnavailable: Postgres did not answer.
    """
    folders = await asyncio.to_thread(_folders, folder)
    if folders:
        await asyncio.to_thread(_delete_others, folders, _text(await wipes_known(reader)))


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.glob("rebuild-*") if path.is_dir()]


def _delete_others(folders: list[Path], text: str) -> None:
    for stores in folders:
        note = stores / _BEGUN
        if not note.exists() or note.read_text() != text:
            shutil.rmtree(stores, ignore_errors=True)


def _text(wipes: Wipes) -> str:
    return f"{wipes.number} {wipes.latest}\n"


# -- child processes

log = logging.getLogger("headwater.rebuild")

_POLL_EVERY_S: Final = 1.0
#: Pause after a rebuild that failed, or that another projector carries out.
_RETRY_AFTER_S: Final = 3.0
#: Seconds for a child process to exit after SIGTERM.
_EXIT_WITHIN_S: Final = 10.0


async def carry_out_rebuilds(
    settings: Settings, stop: asyncio.Event, dsn_of: Callable[[Settings], str]
) -> None:
    """Carry out requested rebuilds until `stop` is set; a later process continues unfinished ones.

    Args:
        settings: The settings.
        stop: Ends this function, and the current child process.
        dsn_of: Returns the Postgres DSN of settings.
    """
    reader = PooledReader(dsn_of(settings))
    await reader.open()
    try:
        while not stop.is_set():
            requested: list[str] = []
            with contextlib.suppress(StoreUnavailable):
                requested = await under_way(reader)
                if not requested:
                    await delete_outdated(reader, folder_of(settings))
                elif await are_locked(reader):
                    requested = []  # Another projector carries one out.
            pause_s = _POLL_EVERY_S
            for rebuild_id in requested:
                if not stop.is_set() and await _carry_out(settings, rebuild_id, stop):
                    pause_s = _RETRY_AFTER_S
            await pause(stop, pause_s)
    finally:
        await reader.close()


async def _carry_out(settings: Settings, rebuild_id: str, stop: asyncio.Event) -> int:
    """Run a child process until it exits; return its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.gateway.builtin.rebuilding", rebuild_id),
        env={**os.environ, **environment(settings)},
        stdin=asyncio.subprocess.DEVNULL,
    )
    ending = asyncio.create_task(process.wait())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            process.terminate()
            await asyncio.wait({ending}, timeout=_EXIT_WITHIN_S)
    finally:
        stopping.cancel()
        if process.returncode is None:
            process.kill()
    code = await ending
    if code and not stop.is_set():
        log.warning(
            "rebuild %s: the process exited with %d and will be restarted", rebuild_id, code
        )
    return code
