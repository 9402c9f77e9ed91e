"""Whether open runs fit the code as it is now: it is replayed against them, and nothing is begun.

The main program of a process of its own, so that code that is about to be loaded harms nobody: it
reads runs from its standard input, and writes what it found to its standard output.
"""

import os
import sys
from typing import Any, Final

import msgspec

from headwater.processors.replay.commands import BeginRollback, CodeCommand, Log, Raise
from headwater.processors.replay.host_messages import Activate
from headwater.streams.authoring.failures import failure_of
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App, AppNotLoaded, Declarations, load_app
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.host_port import Call, Handler
from headwater.streams.replay.workflow import Workflow, read_params

RUNS: Final = msgspec.msgpack.Decoder(list[Activate])


class Misfit(msgspec.Struct, frozen=True):
    """An open run that does not fit this code, and why."""

    instance: str
    why: str


class Fitting(msgspec.Struct, frozen=True):
    """What an app declares now, and which open runs do not fit it; with an error, nothing."""

    declared: Declarations
    misfits: list[Misfit] = []


class _Onlooker:
    """A host that begins nothing, and notes what is wrong."""

    def __init__(self) -> None:
        #: Why a run would fail.
        self.failed = ""
        #: What the run would be told, if the code does not come to all that is recorded.
        self.told = ""

    def send(self, command: CodeCommand) -> None:
        """Notes a failure, and what the code misses; all else is dropped."""
        if isinstance(command, Log) and command.missed:
            self.told = command.message
        if isinstance(command, Raise | BeginRollback) and not self.failed:
            self.failed = f"{command.failure.name}: {command.failure.message}"

    def call(self, call: Call) -> None:
        """Begins no step."""

    def call_handler(self, key: str, attempt: int, handler: Handler, output: Any) -> None:  # noqa: ANN401
        """Begins no handler."""

    def cancel(self, key: str | None = None) -> None:
        """Has nothing to cancel."""

    def hands_back(self) -> bool:
        """Never: nothing is begun here."""
        return False

    def is_busy(self) -> bool:
        """Never."""
        return False

    def now_ms(self) -> int:
        """The clock."""
        return now_ms()


def misfit(begin: Activate, workflow: Workflow) -> str:
    """Why a run would fail with this code, or do what it did before otherwise; "" if it goes on.

    It is replayed as far as it is recorded, and no step is begun.
    """
    if begin.rollback is not None:
        return ""  # It has failed; its handlers are looked for when they are called.
    onlooker = _Onlooker()
    try:
        activation = Activation(begin, workflow, read_params(workflow, begin.params), onlooker)
        activation.proceed()
        activation.close()
    except Exception as error:  # noqa: BLE001, whatever it is, the run would meet it
        failure = failure_of(error)
        return f"{failure.name}: {failure.message}"
    return onlooker.failed or onlooker.told


def fitting(app: App, runs: list[Activate]) -> Fitting:
    """Replays runs against an app, those of its workflows."""
    found = [
        Misfit(f"{each.workflow}/{each.instance_id}", why)
        for each in runs
        if (workflow := app.workflows.get(each.workflow)) and (why := misfit(each, workflow))
    ]
    return Fitting(app.declared, found)


def main() -> None:
    """Argument: an app."""
    out = os.dup(1)
    os.dup2(2, 1)  # What the app prints is no answer.
    runs = RUNS.decode(sys.stdin.buffer.read())
    refuse_in_workflows()
    try:
        found = fitting(load_app(sys.argv[1]), runs)
    except AppNotLoaded as error:
        found = Fitting(Declarations(error=error.message))
    with os.fdopen(out, "wb") as answer:
        answer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
