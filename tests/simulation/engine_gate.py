"""The check before an activation, in a world: code that has not changed fits every run, always.

All deployments of a world have the same code. So whatever was killed, lost or repeated until then,
a run that does not fit is an error of the check, or of what was recorded.
"""

import json
from typing import TYPE_CHECKING

from headwater.processors.code.state import CodeRun
from headwater.processors.graph.graph import graph_of
from headwater.processors.graph.state import GraphRun
from headwater.processors.runs.history_files import history_of, lines_of, read_history
from headwater.streams.code_host.compatibility import CheckedCode, check_run
from tests.simulation.shapes import Place, Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World


class _NoCallbacks:
    """The process of workflows that are only replayed: their callbacks never run."""

    def begin(self, place: Place) -> None:
        raise Violation(f"the check calls the step {place}")

    begin_undo = begin

    async def pass_time(self) -> None:
        raise AssertionError

    async def hang(self) -> None:
        raise AssertionError

    def end(self, place: Place) -> int:
        raise AssertionError

    def drawn(self, place: Place, value: object) -> None:
        """The value is compared with what is recorded after it."""


def check_gate(world: "World") -> None:
    """Replay every run, also from its file: code as it is, graphs with their own definition."""
    workflows = {
        workflow.name: workflow
        for shape in world.shapes
        for workflow in shape.workflows(_NoCallbacks())
    }
    for partition in world.partitions:
        for key, run in partition.reader.states.items():
            graphs = {}
            if isinstance(run, GraphRun):
                graphs = {run.workflow: graph_of(json.loads(run.document))}
            elif not isinstance(run, CodeRun) or run.workflow not in workflows:
                continue
            history = history_of(partition.reader.counted[key], run.run_number)
            if read_history(lines_of(history)) != history:
                raise Violation(f"{key} is not read from its file as it was written")
            result = check_run(CheckedCode(workflows, graphs, {}), history)
            world.seen["checked"] += 1
            if result is None or not result.fits:
                raise Violation(f"the check refuses code that has not changed: {result}")
