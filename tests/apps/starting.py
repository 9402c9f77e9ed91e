"""Workflows that are started by a schedule and by deliveries, and that note what started them."""

from headwater import Step, WorkflowEvent, schedule, workflow


@workflow("report")
async def report(event: WorkflowEvent[dict[str, str]], step: Step) -> str:
    return await step.do("note", lambda: event.payload["scheduled_for"])


@workflow("watch")
async def watch(event: WorkflowEvent[dict[str, int]], step: Step) -> list[int]:
    result: list[int] = []
    while len(result) < event.payload["count"]:
        news = await step.wait_for_events(
            f"wait {len(result)}", types=["delivery"], limit=100, timeout="1 hour"
        )
        result += [new.payload for new in news]
    return result


@workflow("review")
async def review(event: WorkflowEvent[dict[str, object]], step: Step) -> object:
    return await step.do("read", lambda: event.payload["body"])


schedule("second", cron="* * * * * *", workflow=report, catch_up="all")
