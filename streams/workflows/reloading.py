"""Apps that are written while they run: a change of an app's files starts its host again, alone.

Before that the new code is loaded, and replayed against the open runs, in a process of its own: if
it cannot be loaded, the old one stays at work; runs that do not fit it are told of.
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

from headwater.processors.replay.host_messages import Activate
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.streams.code_host.apps import Declarations
from headwater.streams.code_host.compatibility import CompatibilityReport
from headwater.streams.workflows.host_process import START_S
from headwater.streams.workflows.host_supervisor import HostSupervisor
from headwater.streams.workflows.hosts import Hosts

log = logging.getLogger(__name__)

#: Open runs that are replayed after a change: enough for a machine of one's own.
_RUNS_MAX: Final = 1_000
_SHOWN: Final = 10


class AppChanged(HeadwaterError):
    """An app declares something else than when its worker started, which has to start again."""

    disposition = Disposition.HALT
    code = "app_changed"


class Reloading:
    """Watches the files of apps.

    Shape:  open_runs gives those of a worker, of all of its workflows.
    """

    def __init__(self, hosts: Hosts, open_runs: Callable[[], Iterable[Activate]]) -> None:
        self._hosts = hosts
        self._open_runs = open_runs

    async def run(self) -> None:
        """Watches until it is cancelled.

        Errors: AppChanged.
        """
        try:
            async with asyncio.TaskGroup() as watching:
                for each in self._hosts.of_apps():
                    watching.create_task(self._watch(each))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _watch(self, host: HostSupervisor) -> None:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415, of an extra

        async for changes in awatch(folder_of(host.app), watch_filter=PythonFilter()):
            names = ", ".join(sorted({Path(path).name for _, path in changes}))
            log.warning("%s has changed: %s is loaded again", names, host.app)
            await self.reload(host)

    async def reload(self, host: HostSupervisor) -> None:
        """Starts the host of an app again, if its code can be loaded.

        Errors: AppChanged.
        """
        ours = (each for each in self._open_runs() if each.workflow in host.declared.workflows)
        runs = list(islice(ours, _RUNS_MAX))
        found = await _fitting(host.app, runs, self._hosts.environment)
        if found.declared.error:
            log.error("%s; the code before that stays at work", found.declared.error)
            return
        for each in found.incompatible[:_SHOWN]:
            log.warning("%s no longer fits its code: %s", each.instance, each.reason)
        if len(found.incompatible) > _SHOWN:
            log.warning("… and %d more do not", len(found.incompatible) - _SHOWN)
        fit = len(runs) - len(found.incompatible)
        log.warning("%s: of %d open runs %d fit the new code", host.app, len(runs), fit)
        if _names(found.declared) != _names(host.declared):
            raise AppChanged(
                f"expected {host.app} to declare what it did when the worker started, found other "
                "workflows, schedules or tasks; the worker starts again"
            )
        await host.reload()


def folder_of(app: str) -> Path:
    """Where the files of an app are: its package, or the folder that its module lies in."""
    top = app.partition(":")[0].partition(".")[0]
    found = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if found is None or found.origin is None:
        return Path.cwd()
    return Path(found.origin).parent


def _names(declared: Declarations) -> object:
    """What a worker has taken over from its apps when it started."""
    return msgspec.structs.astuple(declared)


async def _fitting(
    app: str, runs: list[Activate], environment: Mapping[str, str]
) -> CompatibilityReport:
    """Loads an app in a process of its own, and replays runs there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headwater.streams.code_host.compatibility", app),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(START_S):
            answer, _ = await process.communicate(msgspec.msgpack.encode(runs))
        return msgspec.json.decode(answer, type=CompatibilityReport)
    except (TimeoutError, msgspec.DecodeError):
        why = f"expected {app} to be loaded and replayed within {START_S:g} s, found it was not"
        return CompatibilityReport(Declarations(error=why))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
