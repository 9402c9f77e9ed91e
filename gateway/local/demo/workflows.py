"""The demo's workflow, as an author would write it: a report on a person's day.

It is started before the day's rows exist. So its first step fails, and is retried until the rows
are there; then the workflow sleeps, waits for a person's approval, and returns the report.
"""

import os
from datetime import timedelta
from typing import TypedDict

import httpx

from headwater import Retry, Step, WorkflowEvent, workflow
from headwater.gateway.local.demo.comparison import compare_steps, day_comparison, read_steps

#: An app is the content of a module: also the imported graph, and its tasks.
__all__ = ["compare_steps", "day_comparison", "day_report", "read_steps"]


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
    """Read a day, wait a moment, wait for approval, and report."""
    request = event.payload
    day: Day = await step.do(
        "read the day",
        lambda: read_day(request),
        retries=Retry(limit=60, delay="1 second", backoff="constant"),
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
    key = os.environ.get("HEADWATER_READ_KEY", "dev-read-key")
    async with httpx.AsyncClient(
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
