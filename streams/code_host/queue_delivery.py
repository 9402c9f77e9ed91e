"""The built-in workflow that delivers messages of queues; an instance per message."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headwater.processors.code.errors import NonRetryableError
from headwater.processors.evaluations import Evaluator
from headwater.processors.queue_messages import DELIVERY, QueueMessage
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.processors.triggers.decide import RejectedEffect
from headwater.processors.triggers.queues import decide_message
from headwater.processors.triggers.rules import Rule
from headwater.schemas.history import Post, StartRun
from headwater.streams.authoring.step_tx import StepTx
from headwater.streams.authoring.values import encode
from headwater.streams.authoring.workflow_values import WorkflowEvent
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow


class QueueDelivery(Workflow):
    """The workflow DELIVERY.

    Args:
        rules: Returns the rules; called in a step when a message is due.
        evaluator: Evaluates expensive expressions; without it there are no limits.
    """

    def __init__(
        self, rules: Callable[[], Sequence[Rule]] = tuple, evaluator: Evaluator | None = None
    ) -> None:
        self._rules = rules
        self._evaluator = evaluator
        super().__init__(DELIVERY, self._run, strict=False)

    async def _run(self, event: WorkflowEvent[Any], step: Step) -> Any:  # noqa: ANN401 (JSON)
        """Wait until the message is due, and send its command."""
        published_at_ms = round(event.timestamp.timestamp() * 1_000)
        try:
            message = msgspec.json.decode(
                encode(event.payload, "a message", VALUE_BYTES_TOP), type=QueueMessage
            )
        except msgspec.ValidationError as error:
            raise NonRetryableError(f"expected a message of a queue as params: {error}") from error
        if message.delay_ms > 0:
            await step.sleep_until("delay", published_at_ms + message.delay_ms)

        def deliver(tx: StepTx) -> dict[str, Any]:
            return self._deliver(tx, message, event.instance_id, published_at_ms)

        return await step.do("deliver", deliver)

    def _deliver(
        self, tx: StepTx, message: QueueMessage, message_id: str, published_at_ms: int
    ) -> dict[str, Any]:
        effect = decide_message(
            self._rules(),
            message,
            message_id=message_id,
            published_at_ms=published_at_ms,
            evaluator=self._evaluator,
        )
        if isinstance(effect, RejectedEffect):
            raise NonRetryableError(effect.detail)
        command = effect.command
        if isinstance(command, StartRun) and message.deployment is not None:
            command = msgspec.structs.replace(command, deployment=message.deployment)
        # Not by its methods, which authors have: they create no instance together with an event.
        tx.posts.append(Post(0, effect.workflow, effect.instance_id, command))
        return {
            "workflow": effect.workflow,
            "instance_id": effect.instance_id,
            "rule": effect.name or None,
        }
