"""The demo's graph: reads the days of several people in parallel, and compares them."""

import os
from typing import TypedDict

import httpx

from headwater import GraphWorkflow, task


class PersonDay(TypedDict):
    """A person's day, and the gateway that has its rows."""

    url: str
    user_id: str
    date: str


class DaySteps(TypedDict):
    """Steps of a day; None if they are not known."""

    user_id: str
    steps: float | None


class ToCompare(TypedDict):
    """The days of all people."""

    days: list[DaySteps]


@task("read-steps")
async def read_steps(day: PersonDay) -> DaySteps:
    """Read the steps of a day from the gateway's rows.

    The key comes from the environment: the input of a task is recorded, and must not have secrets.
    """
    key = os.environ.get("HEADWATER_READ_KEY", "dev-read-key")
    async with httpx.AsyncClient(
        base_url=day["url"], headers={"authorization": f"Bearer {key}"}
    ) as client:
        answer = await client.get("/v1/sync", params={"user_id": day["user_id"]})
    rows = answer.raise_for_status().json()["tables"]["daily_summary"]
    days = (row["steps"] for row in rows if row["datetime"].startswith(day["date"]))
    return {"user_id": day["user_id"], "steps": next(days, None)}


@task("compare-steps")
def compare_steps(comparison: ToCompare) -> dict[str, str]:
    """Find the person with the most steps."""
    known = [
        (day["steps"], day["user_id"]) for day in comparison["days"] if day["steps"] is not None
    ]
    if not known:
        return {"says": "no steps are known"}
    steps, user_id = max(known)
    return {"says": f"{user_id} went furthest, with {steps:.0f} steps"}


day_comparison = GraphWorkflow(
    name="day-comparison",
    initial_node_ref="begin",
    input_schema={
        "type": "object",
        "required": ["url", "date", "users"],
        "properties": {"users": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    },
    nodes=[
        {"ref": "begin", "task": "noop"},
        {
            "ref": "read",
            "task": "read-steps",
            "input_mapping": {"url": "input.url", "date": "input.date", "user_id": "user"},
            "output_mapping": {"output.day": "result"},
            "retries": {"limit": 5, "delay": "1 second", "backoff": "constant"},
            "timeout_ms": 10_000,
        },
        {
            "ref": "compare",
            "task": "compare-steps",
            "input_mapping": {"days": "state.days"},
            "output_mapping": {"output.says": "result.says"},
        },
    ],
    transitions=[
        {
            "ref": "each",
            "from_node_ref": "begin",
            "to_node_ref": "read",
            "sibling_group": "people",
            "foreach": {"collection": "input.users", "item_var": "user"},
        },
        {
            "ref": "all",
            "from_node_ref": "read",
            "to_node_ref": "compare",
            "synchronization": {
                "strategy": "all",
                "sibling_group": "people",
                "merge": {
                    "source": "_branch.output.day",
                    "target": "state.days",
                    "strategy": "collect",
                },
            },
        },
    ],
    output_mapping={"says": "output.says"},
)
