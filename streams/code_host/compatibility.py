"""Check whether open runs are compatible with the current code, by replaying it against them.

No step is started. This is the main program of a separate process, so that code that is about to be
loaded can do no harm. It reads runs from standard input and writes a report to standard output.
"""

import os
import sys
from typing import Any, Final

import msgspec

from headwater.processors.code.host_messages import Activate, BeginRollback, CodeCommand, Log, Raise
from headwater.streams.authoring.failures import failure_of
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App, AppNotLoaded, Declarations, load_app
from headwater.streams.replay.activation import Activation
from headwater.streams.replay.forbidden import refuse_in_workflows
from headwater.streams.replay.host_port import Call, Handler
from headwater.streams.replay.workflow import Workflow, read_params

RUNS: Final = msgspec.msgpack.Decoder(list[Activate])


class IncompatibleRun(msgspec.Struct, frozen=True):
    """An open run that is incompatible with the code."""

    instance: str
    reason: str


class CompatibilityReport(msgspec.Struct, frozen=True):
    """The declarations of an app and the open runs that are incompatible with it."""

    declared: Declarations
    incompatible: list[IncompatibleRun] = []


class _DryRunHost:
    """A host that starts nothing and records problems."""

    def __init__(self) -> None:
        #: Why the run would fail.
        self.failed = ""
        #: The warning that the run would log if the code does not reach all recorded entries.
        self.warning = ""

    def send(self, command: CodeCommand) -> None:
        """Record a failure or a warning about missed entries; ignore all other commands."""
        if isinstance(command, Log) and command.missed:
            self.warning = command.message
        if isinstance(command, Raise | BeginRollback) and not self.failed:
            self.failed = f"{command.failure.name}: {command.failure.message}"

    def call(self, call: Call) -> None:
        """Ignore the call."""

    def call_handler(self, key: str, attempt: int, handler: Handler, output: Any) -> None:  # noqa: ANN401
        """Ignore the call."""

    def cancel(self, key: str | None = None) -> None:
        """Do nothing: no attempt is running."""

    def yield_back(self) -> bool:
        """Return False: no attempt was held back."""
        return False

    def is_busy(self) -> bool:
        """Return False: no attempt is running."""
        return False

    def now_ms(self) -> int:
        """Return the current time in Unix milliseconds."""
        return now_ms()


def incompatibility(begin: Activate, workflow: Workflow) -> str:
    """Return why a run would fail or behave differently with this code; "" if it would not.

    The recorded history is replayed, and no step is started.
    """
    if begin.rollback is not None:
        return ""  # It has failed already; its handlers are looked up when they are called.
    host = _DryRunHost()
    try:
        activation = Activation(begin, workflow, read_params(workflow, begin.params), host)
        activation.proceed()
        activation.close()
    except Exception as error:  # noqa: BLE001, any error would fail the run
        failure = failure_of(error)
        return f"{failure.name}: {failure.message}"
    return host.failed or host.warning


def check_runs(app: App, runs: list[Activate]) -> CompatibilityReport:
    """Replay the runs of an app's workflows against the app."""
    incompatible = [
        IncompatibleRun(f"{run.workflow}/{run.instance_id}", reason)
        for run in runs
        if (workflow := app.workflows.get(run.workflow))
        and (reason := incompatibility(run, workflow))
    ]
    return CompatibilityReport(app.declared, incompatible)


def main() -> None:
    """Check the app named by the command-line argument."""
    out = os.dup(1)
    os.dup2(2, 1)  # Prints of the app must not mix with the report.
    runs = RUNS.decode(sys.stdin.buffer.read())
    refuse_in_workflows()
    try:
        report = check_runs(load_app(sys.argv[1]), runs)
    except AppNotLoaded as error:
        report = CompatibilityReport(Declarations(error=error.message))
    with os.fdopen(out, "wb") as output:
        output.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
