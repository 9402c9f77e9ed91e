"""The measured workflows: they do as little as possible, so that the cost is the engine's."""

from itertools import pairwise
from typing import Final

from headwater import GraphWorkflow, Step, WorkflowEvent, task, workflow

#: Steps of the workflow `ten`.
TEN: Final = 10
#: Its output, by which a reader of the history detects the end of a run without decoding records.
ENDED: Final = "ten steps are done"


async def _nothing() -> None:
    return None


#: Branches of the graph `fan` on a worker.
BRANCHES: Final = 100


@task("nothing")
async def nothing(_input: object) -> None:
    """Do nothing."""
    return await _nothing()


_NODES: Final = [f"n{number}" for number in range(TEN)]
#: In two parts: definitions are in the history, too, and must not look like the end of a run.
_OUTPUT: Final = {"ended": f"'{ENDED[:3]}' + '{ENDED[3:]}'"}

line = GraphWorkflow(
    name="line",
    initial_node_ref=_NODES[0],
    nodes=[{"ref": ref, "task": "nothing"} for ref in _NODES],
    transitions=[
        {"ref": f"to {end}", "from_node_ref": start, "to_node_ref": end}
        for start, end in pairwise(_NODES)
    ],
    output_mapping=_OUTPUT,
)

fan = GraphWorkflow(
    name="fan",
    initial_node_ref="begin",
    nodes=[
        {"ref": "begin", "task": "nothing"},
        {
            "ref": "branch",
            "task": "nothing",
            "input_mapping": {"item": "item"},
            "output_mapping": {"output.item": "item"},
        },
        {"ref": "end", "task": "nothing"},
    ],
    transitions=[
        {
            "ref": "out",
            "from_node_ref": "begin",
            "to_node_ref": "branch",
            "sibling_group": "items",
            "foreach": {"collection": "input.items", "item_var": "item"},
        },
        {
            "ref": "in",
            "from_node_ref": "branch",
            "to_node_ref": "end",
            "synchronization": {
                "strategy": "all",
                "sibling_group": "items",
                "merge": {
                    "source": "_branch.output.item",
                    "target": "state.items",
                    "strategy": "append",
                },
            },
        },
    ],
    output_mapping=_OUTPUT,
)


@workflow("ten")
async def ten(_event: WorkflowEvent[None], step: Step) -> str:
    """Ten steps that do nothing."""
    for number in range(TEN):
        await step.do(f"step {number}", _nothing)
    return ENDED


@workflow("many")
async def many(event: WorkflowEvent[int], step: Step) -> None:
    """As many steps as requested."""
    for number in range(event.payload):
        await step.do(f"step {number}", _nothing)


@workflow("one-step")
async def one_step(_event: WorkflowEvent[str], step: Step) -> None:
    """One step, of a run that its params identify."""
    await step.do("step 0", _nothing)


@workflow("many-then-wait")
async def many_then_wait(event: WorkflowEvent[int], step: Step) -> None:
    """As many steps as requested, then a wait that a replay has to reach."""
    for number in range(event.payload):
        await step.do(f"step {number}", _nothing)
    await step.wait_for_event("go on", type="go-on")


@workflow("sleeper")
async def sleeper(_event: WorkflowEvent[None], step: Step) -> None:
    """Sleeps for longer than any measurement."""
    await step.sleep("long", "30 days")
