"""Workflows about one user that call Terra: upload of a lab report, and the end of connections."""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from headwater.gateway.builtin.data_requests import refusals_are_final
from headwater.gateway.builtin.dependencies import Dependencies
from headwater.gateway.builtin.instances import DISCONNECT, SUBMIT, DisconnectParams, LabResult
from headwater.gateway.builtin.terra.answers import TerraFailed
from headwater.gateway.settings.terra import TerraNotConfigured
from headwater.processors.providers.headwater import LAB, LabParams
from headwater.processors.uploads import NO_REPORT
from headwater.schemas.providers.headwater import ConnectionClosed, LabSubmitted, SystemEvent
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: The user waits for this after uploading a lab report.
_LAB_WITHIN_S: Final = 25.0
_LAB_RETRY: Final = Retry(limit=2, delay="1 second", backoff="constant")
_SOON: Final = Retry(limit=inf, delay="1 second", backoff="constant")
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="30 seconds", backoff="constant")
_SUBMITTED: Final = "submitted"
#: Terra reads a report within minutes, and posts the result for a day if it is not accepted.
_REPORT_WITHIN: Final = "24 hours"
#: An outage of Terra overnight; after about 17 hours an operator should look.
_PATIENTLY: Final = Retry(limit=11, delay="30 seconds", backoff="exponential")


def lab_workflow(dependencies: Dependencies, clock: Callable[[], int]) -> Workflow:
    """Return the workflow that sends an uploaded lab report to Terra and waits for its result.

    Args:
        dependencies: Services that the steps use.
        clock: Returns Unix milliseconds; read only in steps.
    """

    async def lab(event: WorkflowEvent[LabParams], step: Step) -> dict[str, Any]:
        params = event.payload

        async def submit() -> dict[str, Any]:
            return _plain(await _submit(dependencies, params, clock))

        async def publish() -> None:
            await _publish(dependencies, _lab_fact(params, result), event.instance_id)

        async def missing() -> dict[str, Any] | None:
            """Return the result if the report is missing, else None."""
            if await dependencies.lab_status(params.upload_id) != _SUBMITTED:
                return None
            return {**_plain(result), "at_ms": clock(), "terra_status": NO_REPORT}

        result = msgspec.convert(
            await step.do(SUBMIT, submit, retries=_LAB_RETRY, timeout="1 minute"), LabResult
        )
        await step.do("tell", publish, retries=_SOON)
        if result.terra_status == _SUBMITTED:
            await step.sleep("report", _REPORT_WITHIN)
            late = await step.do("missing", missing, retries=_UNTIL_IT_WORKS)
            if late is not None:
                result = msgspec.convert(late, LabResult)
                await step.do("publish no report", publish, retries=_SOON)
        return _plain(result)

    return Workflow(LAB, lab, strict=False)


async def _submit(
    dependencies: Dependencies, params: LabParams, clock: Callable[[], int]
) -> LabResult:
    content = await (await dependencies.blobs()).read(params.storage_key)
    terra = await dependencies.terra()
    upload_id: str | None = None
    try:
        async with asyncio.timeout(_LAB_WITHIN_S):
            upload_id, answer = await terra.upload_lab_report(
                params.user_id,
                name=params.storage_key.rpartition("/")[2],
                content_type=params.content_type,
                content=content,
            )
        status = _SUBMITTED
    except TerraFailed as error:
        status, answer = f"failed:{error.status or 'network'}", error.message
    except TerraNotConfigured as error:
        status, answer = f"failed:{error.code}", error.message
    except TimeoutError:
        answer = f"Terra did not respond within {_LAB_WITHIN_S:g} s"
        status = "failed:network"
    return LabResult(
        at_ms=clock(), terra_status=status, terra_upload_id=upload_id, terra_response=answer
    )


def _lab_fact(params: LabParams, result: LabResult) -> LabSubmitted:
    return LabSubmitted(
        at_ms=result.at_ms,
        user_id=params.user_id,
        upload_id=params.upload_id,
        terra_status=result.terra_status,
        terra_upload_id=result.terra_upload_id,
        terra_response=result.terra_response,
    )


def disconnect_workflow(dependencies: Dependencies, clock: Callable[[], int]) -> Workflow:
    """Return the workflow that ends connections: first at Terra, then here.

    They are closed last: as long as Terra has a connection, its list would open it again.

    Args:
        dependencies: Services that the steps use.
        clock: Returns Unix milliseconds; read only in steps.
    """

    async def disconnect(event: WorkflowEvent[DisconnectParams], step: Step) -> dict[str, Any]:
        user_id = event.payload.user_id

        async def end(terra_user_id: str, step: Step) -> None:
            async def deauthenticate() -> int:
                with refusals_are_final():
                    await (await dependencies.terra()).deauthenticate(terra_user_id)
                return clock()

            async def close() -> None:
                fact = ConnectionClosed(at_ms=at_ms, user_id=user_id, terra_user_id=terra_user_id)
                await _publish(dependencies, fact, event.instance_id)

            at_ms = await step.do(f"end {terra_user_id}", deauthenticate, retries=_PATIENTLY)
            await step.do(f"close {terra_user_id}", close, retries=_SOON)

        connections = event.payload.connections
        # A retry of the run repeats all steps of a join that failed.
        await step.join("connections", **{name: partial(end, name) for name in connections})
        return {"disconnected": len(connections)}

    return Workflow(DISCONNECT, disconnect, strict=False)


async def _publish(dependencies: Dependencies, fact: SystemEvent, request_id: str) -> None:
    await (await dependencies.facts()).publish_fact(fact, request_id=request_id)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
