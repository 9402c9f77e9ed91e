"""Workflow that compares tables in Postgres with Kafka, as `headwater rebuild --verify` does.

A schedule starts it every night. Workflows are left out: their rows are patches, so comparing them
reads all histories. The projector carries out the verifications, one after the other;
`headwater doctor` shows their results.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final

from headwater.gateway.builtin.instances import VERIFY
from headwater.projections.postgres.connections import PooledReader
from headwater.projections.rebuilds.rebuilds import PENDING_STATES, begin, find
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.code_host.schedules import Schedule, schedule
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

_POLL_EVERY_S: Final = 1.0
_KINDS: Final = ("added", "removed", "changed")
_WITHIN: Final = "1 hour"
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="1 minute", backoff="constant")


def verify_schedules(cron: str) -> tuple[Schedule, ...]:
    """Return the schedule of the workflow; none if `cron` is empty."""
    return (schedule(VERIFY, cron=cron, workflow=VERIFY),) if cron else ()


def verify_workflow(
    reader: Callable[[], Awaitable[PooledReader]], projections: Sequence[str]
) -> Workflow:
    """Return the workflow.

    Args:
        reader: Returns the reader of Postgres.
        projections: Names of the tables.
    """

    async def verify(event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
        async def listed() -> list[str]:
            return list(projections)

        differing: dict[str, Any] = {}
        names = await step.do("projections", listed)
        for name in names:

            async def compare(name: str = name) -> dict[str, Any]:
                return await _verified(await reader(), f"{event.instance_id}-{name}", name)

            result = await step.do(
                f"verify {name}", compare, retries=_UNTIL_IT_WORKS, timeout=_WITHIN
            )
            if any(result.values()):
                differing[name] = result
                data = {"projection": name, **result}
                await step.log.warn("rows in Postgres differ from Kafka", data)  # noqa: G010, PLE1205 (a line of the instance)
        return {"projections": len(names), "differing": differing}

    return Workflow(VERIFY, verify, strict=False)


async def _verified(reader: PooledReader, verification_id: str, projection: str) -> dict[str, Any]:
    """Request a verification, unless that was done before; return how many rows differ."""
    while True:
        verification = await find(reader, verification_id)
        if verification is None:
            # Another rebuild of the projection may be under way.
            await begin(reader, verification_id, projection, verify=True)
        elif verification.state == "failed":
            return {"failed": verification.error}
        elif verification.state not in PENDING_STATES:
            return {kind: getattr(verification, kind) for kind in _KINDS}
        await asyncio.sleep(_POLL_EVERY_S)
