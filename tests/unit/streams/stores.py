"""Stores on disk, as tests make them: of the same partition, each in a folder of its own."""

from pathlib import Path
from typing import Final

from headwater.streams.kafka.state_store import Family, StateStore, StoreIdentity
from headwater.streams.kafka.state_stores import StateStores

ROWS: Final = Family("rows")
CLAIMS: Final = Family("claims")
NOW_MS: Final = 1_800_000_000_000
MEMORY: Final = 8 * 1024 * 1024
OURS: Final = StoreIdentity(
    cluster="c-1", group="pipeline", topics=("rows", "claims"), partition=3, form="1"
)


def stores(folder: Path, now_ms: int = NOW_MS) -> StateStores:
    return StateStores(folder, MEMORY, lambda: now_ms)


def opened(folder: Path, identity: StoreIdentity = OURS) -> StateStore:
    return stores(folder).open(identity)


def data_of(folder: Path) -> Path:
    """Where the files of the store are."""
    return folder / OURS.group / f"{OURS.partition}.0" / "data"
