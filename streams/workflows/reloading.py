"""Reloads apps during development: a change of an app's files restarts only its host.

The new code is first loaded, and replayed against the open runs, in a separate process. If it
cannot be loaded, the old code keeps running. Runs that do not fit the new code are logged.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from headwater.processors.code.host_messages import Activate
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host.apps import Declarations
from headwater.streams.code_host.compatibility import CompatibilityReport
from headwater.streams.workflows.host_process import START_S
from headwater.streams.workflows.host_supervisor import HostSupervisor
from headwater.streams.workflows.hosts import Hosts

log = logging.getLogger(__name__)

#: Open runs that are replayed after a change, enough for a development machine.
_RUNS_MAX: Final = 1_000
_SHOWN: Final = 10


class AppChanged(HeadwaterError):
    """The declarations of an app have changed, so its worker must restart."""

    disposition = Disposition.HALT
    code = "app_changed"


class Reloading:
    """Watches the files of apps.

    Args:
        hosts: Hosts of the worker.
        open_runs: Returns the open runs of the worker, of all workflows.
    """

    def __init__(self, hosts: Hosts, open_runs: Callable[[], Iterable[Activate]]) -> None:
        self._hosts = hosts
        self._open_runs = open_runs

    async def run(self) -> None:
        """Watch until it is cancelled.

        Raises:
            AppChanged: The declarations of an app have changed.
        """
        try:
            async with asyncio.TaskGroup() as watching:
                for host in self._hosts.app_hosts():
                    watching.create_task(self._watch(host))
        except ExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _watch(self, host: HostSupervisor) -> None:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415, of an extra

        async for changes in awatch(folder_of(host.app), watch_filter=PythonFilter()):
            names = ", ".join(sorted({Path(path).name for _, path in changes}))
            log.warning("%s has changed: reloading %s", names, host.app)
            await self.reload(host)

    async def reload(self, host: HostSupervisor) -> None:
        """Restart the host of an app, if its code can be loaded.

        Raises:
            AppChanged: The declarations of the app have changed.
        """
        matching = (run for run in self._open_runs() if run.workflow in host.declared.workflows)
        runs = list(islice(matching, _RUNS_MAX))
        report = await _check_compatibility(host.app, runs, self._hosts.environment)
        if report.declared.error:
            log.error("%s; keeping the previous code", report.declared.error)
            return
        for run in report.incompatible[:_SHOWN]:
            log.warning("%s no longer fits its code: %s", run.instance, run.reason)
        if len(report.incompatible) > _SHOWN:
            log.warning("… and %d more", len(report.incompatible) - _SHOWN)
        compatible = len(runs) - len(report.incompatible)
        log.warning("%s: of %d open runs %d fit the new code", host.app, len(runs), compatible)
        if _names(report.declared) != _names(host.declared):
            raise AppChanged(
                f"expected {host.app} to declare the same as when the worker started, found other "
                "workflows, schedules or tasks; the worker restarts"
            )
        await host.reload()


def folder_of(app: str) -> Path:
    """Return the folder of an app: its package, or the folder of its module."""
    top = app.partition(":")[0].partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None or spec.origin is None:
        return Path.cwd()
    return Path(spec.origin).parent


def _names(declared: Declarations) -> object:
    """Return the declarations that a worker uses from its start on."""
    return msgspec.structs.astuple(declared)


async def _check_compatibility(
    app: str, runs: list[Activate], environment: Mapping[str, str]
) -> CompatibilityReport:
    """Load an app in a separate process, and replay runs there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.streams.code_host.compatibility", app),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(START_S):
            output, _ = await process.communicate(msgspec.msgpack.encode(runs))
        return msgspec.json.decode(output, type=CompatibilityReport)
    except (TimeoutError, msgspec.DecodeError):
        error = f"expected {app} to be loaded and replayed within {START_S:g} s, found it was not"
        return CompatibilityReport(Declarations(error=error))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
