"""What an app declares, told by a process that loads it and ends.

The worker's own process never imports authors' code, and its code host speaks of runs alone. So who
has to know what there is asks here. Run as a module it is that process.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from streams.code_host.apps import AppNotLoaded, load_app, schedules_of
from streams.code_host.process import START_S
from streams.code_host.schedule_runner import RUNNER
from streams.code_host.schedules import Declared

#: Beside whoever serves: to load an app a second time must not take a core from them.
_NICE: Final = 10


class Declarations(msgspec.Struct, frozen=True):
    """What an app has; with an error, nothing."""

    workflows: tuple[str, ...] = ()
    schedules: tuple[Declared, ...] = ()
    error: str = ""


async def declarations_of(
    app: str, *, directory: Path | None = None, within_s: float = START_S
) -> Declarations:
    """Loads an app as a worker would and says what it declares.

    Errors: AppNotLoaded, with the author's traceback.
    """
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", closefd=True) as pipe:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "streams.code_host.declared", str(theirs), app),
                pass_fds=(theirs,),
                stdin=asyncio.subprocess.DEVNULL,
                cwd=directory,
            )
        finally:
            os.close(theirs)
        try:
            async with asyncio.timeout(within_s):
                said = await asyncio.to_thread(pipe.read)
                await process.wait()
        except TimeoutError:
            raise AppNotLoaded(
                f"expected {app} to be imported within {within_s:g} s, found it still busy"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return _read(app, said, process.returncode)


def _read(app: str, said: bytes, code: int | None) -> Declarations:
    try:
        found = msgspec.json.decode(said, type=Declarations)
    except msgspec.DecodeError:
        raise AppNotLoaded(
            f"expected {app} to be imported, found that the process ended with exit code {code}"
        ) from None
    if found.error:
        raise AppNotLoaded(found.error)
    return found


def _declared(app: str) -> Declarations:
    try:
        workflows = load_app(app)
    except AppNotLoaded as error:
        return Declarations(error=error.message)
    schedules = tuple(each.declared for each in schedules_of(workflows))
    return Declarations(tuple(sorted(workflows.keys() - {RUNNER})), schedules)


def main() -> NoReturn:
    """Loads an app and writes what it declares. Arguments: the pipe, the app."""
    pipe, app = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(pipe, False)
    os.nice(_NICE)
    # What authors print goes to the log.
    os.dup2(2, 1)
    with os.fdopen(pipe, "wb") as out:
        out.write(msgspec.json.encode(_declared(app)))
    sys.stdout.flush()
    # Threads that the app has started are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
