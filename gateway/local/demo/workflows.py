"""The demo's workflows, as an author would write them: a report on a day, and a comparison."""

import os
from datetime import timedelta
from typing import TypedDict

import httpx2

from headwater import GraphWorkflow, Retry, Step, WorkflowEvent, task, workflow

__all__ = [
    "DaySteps",
    "PersonDay",
    "ToCompare",
    "compare_steps",
    "day_comparison",
    "day_report",
    "read_steps",
]


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
    key = os.environ.get("HEADWATER_READ_KEY", "dev-read-key").partition(",")[0]
    async with httpx2.AsyncClient(
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


# -- report


#: An app is the content of a module: also the imported graph, and its tasks.
class DayRequest(TypedDict):
    """A person's day, and the gateway that has its rows."""

    url: str
    user_id: str
    date: str


class Day(TypedDict):
    """Data of a report."""

    steps: float
    resting_heart_rate: float


@workflow("day-report")
async def day_report(event: WorkflowEvent[DayRequest], step: Step) -> str:
    """Read a day, wait a moment, wait for approval, and report.

    It is started before the day's rows exist. So its first step fails, and is retried until the
    rows are there.
    """
    request = event.payload
    day: Day = await step.do(
        "read the day",
        lambda: read_day(request),
        retries=Retry(limit=600, delay="1 second", backoff="constant"),
        timeout="10 seconds",
    )
    await step.log.info("the day is there", day)  # noqa: PLE1205 (no logger of the library)
    await step.sleep("let it settle", timedelta(milliseconds=500))
    approval = await step.wait_for_event("approval", type="approval", timeout="1 hour")
    report: str = await step.do("write", lambda: write(request, day, approval.payload["by"]))
    return report


async def read_day(request: DayRequest) -> Day:
    """Return the day's row, once it has both the steps of the day and the heart rate of the night.

    The key comes from the environment: what a step receives is recorded, and must not have secrets.
    """
    key = os.environ.get("HEADWATER_READ_KEY", "dev-read-key").partition(",")[0]
    async with httpx2.AsyncClient(
        base_url=request["url"], headers={"authorization": f"Bearer {key}"}
    ) as client:
        answer = await client.get("/v1/sync", params={"user_id": request["user_id"]})
    for row in answer.raise_for_status().json()["tables"]["daily_summary"]:
        if row["datetime"].startswith(request["date"]) and row["steps"] and row["sleep_minutes"]:
            return {"steps": row["steps"], "resting_heart_rate": row["resting_heart_rate"]}
    raise LookupError(
        f"expected {request['date']} of {request['user_id']}, found no complete day yet"
    )


def write(request: DayRequest, day: Day, approver: str) -> str:
    """Return the report."""
    return (
        f"{request['user_id']} on {request['date']}: {day['steps']:.0f} steps, resting heart rate "
        f"{day['resting_heart_rate']:.0f}; approved by {approver}"
    )
