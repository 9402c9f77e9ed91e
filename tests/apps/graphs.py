"""A graph whose branches take a while, and say in a file who runs them."""

import asyncio
import os
from pathlib import Path
from typing import Any

from headwater import GraphWorkflow, Step, WorkflowEvent, task, workflow

MERGE = {"source": "_branch.output.n", "target": "state.all", "strategy": "append"}


def seen(given: dict[str, Any]) -> None:
    with Path(given["file"]).open("a") as file:
        file.write(f"{os.getpid()} {given['n']}\n")


@task("double")
async def double(given: dict[str, Any]) -> dict[str, int]:
    seen(given)
    await asyncio.sleep(0.2)
    return {"n": given["n"] * 2}


@task("tell")
def tell(given: dict[str, Any]) -> dict[str, Any]:
    Path(given["file"] + ".total").write_text(str(sum(given["all"])))
    return {}


doubles = GraphWorkflow(
    name="doubles",
    initial_node_ref="start",
    nodes=[
        {"ref": "start", "task": "noop"},
        {
            "ref": "double",
            "task": "double",
            "retries": {"limit": 9, "delay": "100 ms", "backoff": "constant"},
            "input_mapping": {"n": "item", "file": "input.file"},
            "output_mapping": {"output.n": "result.n"},
        },
        {
            "ref": "tell",
            "task": "tell",
            "input_mapping": {"all": "state.all", "file": "input.file"},
        },
    ],
    transitions=[
        {
            "ref": "out",
            "from_node_ref": "start",
            "to_node_ref": "double",
            "sibling_group": "items",
            "foreach": {"collection": "input.items", "item_var": "item"},
        },
        {
            "ref": "in",
            "from_node_ref": "double",
            "to_node_ref": "tell",
            "synchronization": {"strategy": "all", "sibling_group": "items", "merge": MERGE},
        },
    ],
)


@task("bulk")
async def bulk(given: dict[str, Any]) -> dict[str, Any]:
    return {"n": "x" * given["size"]}


wide = GraphWorkflow(
    name="wide",
    initial_node_ref="start",
    nodes=[
        {"ref": "start", "task": "noop"},
        {
            "ref": "bulk",
            "task": "bulk",
            "retries": {"limit": 9, "delay": "100 ms", "backoff": "constant"},
            "input_mapping": {"size": "input.size"},
            "output_mapping": {"output.n": "result.n"},
        },
        {
            "ref": "tell",
            "task": "tell",
            "input_mapping": {"all": "[state.all.size()]", "file": "input.file"},
        },
    ],
    transitions=[
        {
            "ref": "out",
            "from_node_ref": "start",
            "to_node_ref": "bulk",
            "sibling_group": "items",
            "foreach": {"collection": "input.items", "item_var": "item"},
        },
        {
            "ref": "in",
            "from_node_ref": "bulk",
            "to_node_ref": "tell",
            "synchronization": {"strategy": "all", "sibling_group": "items", "merge": MERGE},
        },
    ],
)


@workflow("beside")
async def beside(_: WorkflowEvent[object], step: Step) -> object:
    return await step.do("here", lambda: "here")
