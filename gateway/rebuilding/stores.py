"""Stores that rebuilds keep for their switch: they go when somebody is wiped.

They have the bytes of everybody. A switch that finds none makes the rows once more.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Final

from headwater.gateway.settings import Settings
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.rebuilds.rebuilds import Wipes, wipes_known

#: The file that says which wipes there were when the stores beside it were begun.
_BEGUN: Final = "begun-after"


def folder_of(settings: Settings) -> Path:
    """Where the stores of rebuilds lie, a folder for each."""
    return settings.state_dir / "rebuilds"


def begun_at(stores: Path, wipes: Wipes) -> None:
    """Notes which wipes there are, unless these stores have been begun before."""
    stores.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = stores / _BEGUN
    if not note.exists():
        note.write_text(_text(wipes))


async def forget_wiped(reader: PooledReader, folder: Path) -> None:
    """Deletes the stores that were begun before a wipe. To be called while no rebuild goes on.

    Errors: StoreUnavailable.
    """
    kept = await asyncio.to_thread(_kept, folder)
    if kept:
        await asyncio.to_thread(_delete_others, kept, _text(await wipes_known(reader)))


def _kept(folder: Path) -> list[Path]:
    return [each for each in folder.glob("rebuild-*") if each.is_dir()]


def _delete_others(kept: list[Path], text: str) -> None:
    for stores in kept:
        note = stores / _BEGUN
        if not note.exists() or note.read_text() != text:
            shutil.rmtree(stores, ignore_errors=True)


def _text(wipes: Wipes) -> str:
    return f"{wipes.number} {wipes.latest}\n"
