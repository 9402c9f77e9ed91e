"""The demo's workflow, written as an author would write one: a report on somebody's day.

It is started before the day is known. So its first step fails, and is tried again until the rows
are there; then it rests, waits for a person to say yes, and tells what the day was.
"""

import os
from datetime import timedelta
from typing import TypedDict

import httpx

from headwater import Retry, Step, WorkflowEvent, workflow
from headwater.gateway.local.demo.comparison import compare_steps, day_comparison, read_steps

#: An app is what a module has: the graph beside it, and its tasks.
__all__ = ["compare_steps", "day_comparison", "day_report", "read_steps"]


class Asked(TypedDict):
    """Whose day, and the gateway that knows of it."""

    url: str
    user_id: str
    date: str


class Day(TypedDict):
    """What a report is made of."""

    steps: float
    resting_heart_rate: float


@workflow("day-report")
async def day_report(event: WorkflowEvent[Asked], step: Step) -> str:
    """Reads a day, lets it settle, asks, and reports."""
    asked = event.payload
    day: Day = await step.do(
        "read the day",
        lambda: read_day(asked),
        retries=Retry(limit=60, delay="1 second", backoff="constant"),
        timeout="10 seconds",
    )
    await step.log.info("the day is there", day)  # noqa: PLE1205 (no logger of the library)
    await step.sleep("let it settle", timedelta(milliseconds=500))
    approval = await step.wait_for_event("approval", type="approval", timeout="1 hour")
    report: str = await step.do("write", lambda: write(asked, day, approval.payload["by"]))
    return report


async def read_day(asked: Asked) -> Day:
    """The day's row, once it has both the steps of the day and the heart rate of the night.

    The key comes from the environment: what is passed to a step is recorded, and secrets are not.
    """
    key = os.environ.get("HEADWATER_READ_KEY", "dev-read-key")
    async with httpx.AsyncClient(
        base_url=asked["url"], headers={"authorization": f"Bearer {key}"}
    ) as client:
        answer = await client.get("/v1/sync", params={"user_id": asked["user_id"]})
    for row in answer.raise_for_status().json()["tables"]["daily_summary"]:
        if row["datetime"].startswith(asked["date"]) and row["steps"] and row["sleep_minutes"]:
            return {"steps": row["steps"], "resting_heart_rate": row["resting_heart_rate"]}
    raise LookupError(f"expected {asked['date']} of {asked['user_id']}, found no whole day yet")


def write(asked: Asked, day: Day, approver: str) -> str:
    """The report."""
    return (
        f"{asked['user_id']} on {asked['date']}: {day['steps']:.0f} steps, resting heart rate "
        f"{day['resting_heart_rate']:.0f}; approved by {approver}"
    )
