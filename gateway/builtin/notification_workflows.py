"""Workflows that send notifications to endpoints, and that carry out rules about notifications.

An instance sends one notification to one endpoint. Its attempts are steps with the response as
result, so every attempt is recorded, and its pauses are sleeps, so a dead endpoint occupies no
process. A notification that was not accepted is an errored instance, and a replay restarts it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from headwater.gateway.builtin.endpoint_sender import EndpointSender, Sent
from headwater.processors.code.errors import NonRetryableError
from headwater.processors.evaluations import Evaluator
from headwater.processors.notifications import NOTIFY, REACT, Reaction, ToEndpoint, jittered_ms
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.processors.triggers.decide import RejectedEffect
from headwater.processors.triggers.reactions import decide_reactions
from headwater.processors.triggers.rules import Rule
from headwater.schemas.history import Post
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import encode
from headwater.streams.authoring.workflow_values import Retry, WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow

#: Returns the sender; called in steps.
GetSender: TypeAlias = Callable[[], Awaitable[EndpointSender]]
S = TypeVar("S", bound=msgspec.Struct)

#: Kafka or Postgres may be unavailable for long, and that is no attempt. Every retry is a record of
#: the history: pauses that grow make about 60 of them in an hour.
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="2 seconds", backoff="linear")
#: Longer than a request, and the queue before it.
_ATTEMPT_TIMEOUT: Final = "10 minutes"


class NotDelivered(NonRetryableError):
    """No attempt was accepted, or the endpoint takes no notifications."""


def notification_workflow(sender: GetSender) -> Workflow:
    """Return the workflow that sends a notification to an endpoint."""

    async def notify(event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
        params, number = _read(event.payload, ToEndpoint), 1
        sent = await _attempt(sender, step, params, number)
        for retry_ms in params.retries_ms:
            if sent.outcome != "failed":
                break
            pause_ms = jittered_ms(retry_ms, f"{event.instance_id}/{number}")
            await step.sleep(f"pause {number}", max(pause_ms, sent.retry_after_ms))
            number += 1
            sent = await _attempt(sender, step, params, number)
        if sent.outcome in {"accepted", "skipped"}:
            return {"outcome": sent.outcome, "attempts": number, "status": sent.status}
        if sent.outcome == "stopped":
            raise NotDelivered(sent.detail)
        if params.retries_ms:  # A test has none, and may fail.
            began_ms = round(event.timestamp.timestamp() * 1_000)
            give_up = partial(_give_up, sender, params.endpoint, began_ms)
            await step.do("give up", give_up, retries=_UNTIL_IT_WORKS)
        answer = f"status {sent.status}" if sent.status else sent.detail
        raise NotDelivered(f"none of {number} attempts was accepted; the last: {answer}")

    return Workflow(NOTIFY, notify, strict=False)


async def _attempt(sender: GetSender, step: Step, params: ToEndpoint, number: int) -> Sent:
    async def attempt() -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(await (await sender()).attempt(params, number))
        return plain

    plain = await step.do(
        f"attempt {number}", attempt, retries=_UNTIL_IT_WORKS, timeout=_ATTEMPT_TIMEOUT
    )
    return msgspec.convert(plain, Sent)


async def _give_up(sender: GetSender, endpoint: str, since_ms: int) -> bool:
    return await (await sender()).give_up(endpoint, since_ms)


# -- reactions


class ReactionFailed(NonRetryableError):
    """Rules about a notification could not be applied."""


def reaction_workflow(
    sender: GetSender, rules: Callable[[], Sequence[Rule]], evaluator: Evaluator | None
) -> Workflow:
    """Return the workflow that carries out the rules about a notification.

    Args:
        sender: Returns the sender, which reads the details of instances.
        rules: Returns the rules; called in a step.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """

    async def react(event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
        notification = _read(event.payload, Reaction).notification

        async def apply(tx: StepTx) -> dict[str, Any]:
            more = await (await sender()).details(notification)
            effects = await asyncio.to_thread(
                decide_reactions, rules(), notification, more or {}, evaluator
            )
            rejected = [effect.detail for effect in effects if isinstance(effect, RejectedEffect)]
            sent = [effect for effect in effects if not isinstance(effect, RejectedEffect)]
            for effect in sent:
                # Not by its methods: they create no instance together with an event.
                tx.posts.append(Post(0, effect.workflow, effect.instance_id, effect.command))
            started = [f"{effect.workflow}/{effect.instance_id}" for effect in sent]
            return {"sent": started, "rejected": rejected}

        result: dict[str, Any] = await step.do("apply", apply, retries=_UNTIL_IT_WORKS)
        if result["rejected"]:
            raise ReactionFailed("\n".join(result["rejected"]))
        return result

    return Workflow(REACT, react, strict=False)


def _read(payload: Any, kind: type[S]) -> S:  # noqa: ANN401 (JSON)
    """Read params.

    Raises:
        NonRetryableError: They were not made by Headwater.
    """
    try:
        return msgspec.json.decode(encode(payload, "params", VALUE_BYTES_TOP), type=kind)
    except msgspec.ValidationError as error:
        raise NonRetryableError(f"expected the params of a notification: {error}") from error
