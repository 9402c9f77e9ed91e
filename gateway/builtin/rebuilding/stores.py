"""Local stores of rebuilds, kept for the switch, and deleted after a wipe.

They contain data of all users. A switch without a store computes the rows again.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Final

from headwater.gateway.settings.settings import Settings
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.rebuilds.rebuilds import Wipes, wipes_known

#: File with the wipes that existed when the stores in the same folder were created.
_BEGUN: Final = "begun-after"


def folder_of(settings: Settings) -> Path:
    """Return the folder of all rebuilds, with one folder for each."""
    return settings.state_dir / "rebuilds"


def note_wipes(stores: Path, wipes: Wipes) -> None:
    """Record the existing wipes in a folder of stores, unless it was created before."""
    stores.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = stores / _BEGUN
    if not note.exists():
        note.write_text(_text(wipes))


async def delete_outdated(reader: PooledReader, folder: Path) -> None:
    """Delete the stores that were created before a wipe. Call it only while no rebuild runs.

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
