"""The addresses where the processes of `headwater up` answer monitors, as a file for Prometheus."""

import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headwater.gateway.local.processes import ProcessSpec
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.settings import PREFIX, Settings
from headwater.monitoring.address import Address

#: First port that `headwater up` tries.
_FIRST_PORT: Final = 9600
#: Ports between two tries: more than any number of processes.
_STEP: Final = 200
_TRIES: Final = 20
_HOST: Final = "127.0.0.1"
_VARIABLE: Final = PREFIX + "METRICS_ADDRESS"


class Target(msgspec.Struct, frozen=True):
    """Addresses with the same labels, as Prometheus reads them from a file."""

    targets: list[str]
    labels: dict[str, str]


def with_monitored_processes(settings: Settings) -> Settings:
    """Return settings with an address for monitors; free ports of loopback if none is set."""
    if settings.metrics_address:
        return settings
    number = 2 * max(1, settings.processes) + 1
    for first in range(_FIRST_PORT, _FIRST_PORT + _TRIES * _STEP, _STEP):
        if all(map(_is_free, range(first, first + number))):
            address = str(Address(_HOST, first))
            return settings.model_copy(update={"metrics_address": address})
    return settings


def _is_free(port: int) -> bool:
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return False
    return True


def targets_file(settings: Settings) -> Path:
    """Return the file with the addresses, in the format of Prometheus' `file_sd_configs`."""
    return settings.data_dir / "prometheus-targets.json"


@contextlib.contextmanager
def publish_targets(settings: Settings, specs: Iterable[ProcessSpec]) -> Iterator[None]:
    """Have a file with the addresses while the processes run.

    Args:
        settings: Settings of all processes.
        specs: The processes.
    """
    gateway = Target([urlsplit(url_of(settings)).netloc], {"process": "gateway"})
    targets = [gateway, *filter(None, map(_target, specs))]
    file = targets_file(settings)
    file.write_bytes(msgspec.json.encode(targets))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def read_targets(settings: Settings) -> list[Target]:
    """Return the addresses of the processes that run; none if `headwater up` does not run."""
    try:
        return msgspec.json.decode(targets_file(settings).read_bytes(), type=list[Target])
    except FileNotFoundError:
        return []


def _target(spec: ProcessSpec) -> Target | None:
    """Return the address of a process that is not a gateway, if it has one."""
    address = spec.env.get(_VARIABLE, "")
    if spec.name.startswith("gateway") or not address:
        return None
    return Target([address], {"process": spec.name.partition("-")[0], "name": spec.name})
