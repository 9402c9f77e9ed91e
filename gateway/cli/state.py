"""Stores of a worker's partition state: on this machine's disk, with bounded memory."""

import os
from collections.abc import Callable

from headwater.gateway.settings.privacy import make_private_folder
from headwater.gateway.settings.settings import Settings
from headwater.schemas.errors import ProcessUnavailable
from headwater.streams.kafka.state_stores import StateStores

_MIB = 1024 * 1024


def stores_of(settings: Settings, clock: Callable[[], int]) -> StateStores:
    """Return the stores of a worker's partitions.

    Raises:
        PartUnavailable: The folder cannot be used.
    """
    folder = settings.state_dir
    try:
        make_private_folder(folder, settings.data_dir)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise _unusable(settings, repr(error)) from error
    if not writable:
        raise _unusable(settings, "a folder that this user cannot write")
    return StateStores(folder, settings.state_memory_mib * _MIB, clock)


def _unusable(settings: Settings, found: str) -> ProcessUnavailable:
    return ProcessUnavailable(
        f"expected a folder for the state of partitions in {settings.state_dir}, found {found}; "
        "set HEADWATER_DATA_DIR to a folder that the worker may write"
    )
