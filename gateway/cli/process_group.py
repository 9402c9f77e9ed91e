"""Several processes of one command: `headwater serve` and `headwater worker` with `--processes`.

The parent does no work of its own. It opens the port, starts the processes, restarts those that
end or hang, and stops all of them. This module imports little, because the parent only waits.
"""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from headwater.gateway.api.listening import reserve
from headwater.gateway.local.processes import ProcessSpec, RestartPolicy
from headwater.gateway.local.supervisor import ProcessFailed, Supervisor
from headwater.gateway.local.temporary_folder import temporary_folder
from headwater.gateway.settings.environment import environment
from headwater.gateway.settings.privacy import close_environment
from headwater.gateway.settings.process import GroupProcess, log_to_stderr
from headwater.gateway.settings.settings import Settings

log = logging.getLogger("headwater")

#: Seconds within which a process that is misconfigured exits. Later, an error is temporary.
_FIRST_START_S: Final = 30.0
#: Exit code if a process had to be killed to stop it.
_KILLED: Final = 1
_NOTHING: Final = GroupProcess()


def run_gateways(settings: Settings) -> None:
    """Run `settings.processes` gateways on one port until SIGTERM or SIGINT.

    Raises:
        ProcessUnavailable: The port is taken.
        Exit: A process did not start, or had to be killed.
    """
    with sharing_port(settings) as (with_port, shared):
        _run(with_port, command("gateway", "serve"), shared)


def run_workers(settings: Settings, *options: str, ticked: bool) -> None:
    """Run `settings.processes` workers, of workflows if there is an app, until SIGTERM or SIGINT.

    Args:
        settings: Settings of the command.
        options: Options of the command that are not settings.
        ticked: Whether every worker listens for ticks.

    Raises:
        UsageError: There is no port or URL for each of them.
        Exit: A process did not start, or had to be killed.
    """
    _check_addresses(settings, ticked=ticked)
    _run(settings, command("workflows" if settings.app else "pipeline", "worker", *options))


@contextlib.contextmanager
def sharing_port(settings: Settings) -> Iterator[tuple[Settings, GroupProcess]]:
    """Yield settings with a reserved port, and what several gateways on it share.

    Each has a socket of its own there, so that the kernel distributes connections evenly. From one
    socket, whichever process wakes up first accepts nearly all of a burst, and keeps them.

    Raises:
        ProcessUnavailable: The port is taken.
    """
    with (
        reserve(settings.host, settings.port) as holder,
        temporary_folder("headwater-metrics-") as folder,
    ):
        port = holder.getsockname()[1]
        yield (
            settings.model_copy(update={"port": port}),
            GroupProcess(shares_port=True, metrics=str(folder)),
        )


def command(name: str, *arguments: str) -> ProcessSpec:
    """Return the specification of a process that runs a command of Headwater."""
    return ProcessSpec(name=name, argv=(sys.executable, "-m", "headwater", *arguments), env={})


def several(
    spec: ProcessSpec,
    settings: Settings,
    shared: GroupProcess = _NOTHING,
    *,
    one_log: bool = False,
) -> list[ProcessSpec]:
    """Return specifications of `settings.processes` processes, with settings as environment.

    Args:
        spec: What they have in common. With several, their names are numbered.
        settings: Settings of all. With several, workers have names and ports of their own.
        shared: What they share.
        one_log: Whether they write to one log, so that lines begin with their names.
    """
    alone = settings.processes <= 1
    specs = []
    for index in range(max(1, settings.processes)):
        name = spec.name if alone else f"{spec.name}-{index + 1}"
        known = msgspec.structs.replace(shared, name=name if one_log else "")
        env = environment(settings if alone else _own(settings, index)) | known.variables()
        last = partial(_last_published, Path(shared.metrics)) if shared.metrics else None
        specs.append(dataclasses.replace(spec, name=name, env=env, last_heartbeat=last))
    return specs


def _last_published(folder: Path, process_id: int) -> int:
    """Return when a gateway last published its metrics, which its event loop does every 5 s."""
    published = [0]
    for file in folder.glob(f"{process_id}-*"):
        with contextlib.suppress(FileNotFoundError):
            published.append(file.stat().st_mtime_ns)
    return max(published)


def _own(settings: Settings, index: int) -> Settings:
    """Return the settings of one of several processes, without those that no two may share."""
    own: dict[str, Any] = {"processes": 1}
    if settings.member:
        own["member"] = f"{settings.member}-{index + 1}"
    return settings.model_copy(update=own | settings.monitored_from(index))


def _check_addresses(settings: Settings, *, ticked: bool) -> None:
    count, urls = settings.processes, len(settings.tick_urls)
    if ticked and urls < count:
        raise click.UsageError(
            f"--tick: expected {count} URLs in HEADWATER_TICK_URL, one for each process, "
            f"found {urls}"
        )
    try:
        settings.monitored_from(count - 1)
    except ValueError as error:
        raise click.UsageError(
            f"{error} as the first port of {count} processes that answer monitors; set another "
            "port with HEADWATER_METRICS_ADDRESS or HEADWATER_WORKER_METRICS_PORT"
        ) from error


def _run(settings: Settings, spec: ProcessSpec, shared: GroupProcess = _NOTHING) -> None:
    close_environment()
    log_to_stderr(settings, "supervisor")
    supervisor = Supervisor(
        report=log.info, warn=log.warning, restarts=RestartPolicy(first_start_s=_FIRST_START_S)
    )
    try:
        with supervisor:
            supervisor.start(*several(spec, settings, shared, one_log=True))
            supervisor.watch()
    except ProcessFailed as error:
        log.critical("%s", error.message)
        raise click.exceptions.Exit(error.exit_code) from error
    if not supervisor.stopped_in_order:
        raise click.exceptions.Exit(_KILLED)
