"""Queues: publish messages, which start or signal workflows by rule."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.requests import Repeat, json_object
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.v1_answers import MessagePublished, QueueList
from headwater.streams.authoring.values import encode

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session


class Queues:
    """Queues of a server. All methods raise ClientError."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def send(
        self,
        queue: str,
        message: Any = None,  # noqa: ANN401 (any JSON)
        *,
        delay: Duration = 0,
        key: str | None = None,
        deployment: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> MessagePublished:
        """Publish a message.

        Args:
            queue: Name of the queue.
            message: Any JSON.
            delay: Time until it is delivered.
            key: Idempotency key: within a day, messages of the queue with the same key are
                published once. Without one the request has a key of its own, so that it is safe to
                repeat.
            deployment: Id of the deployment on which its run begins.
            headers: Headers, for rules.

        Raises:
            IdempotencyConflictError: The key was used for another queue.
            ValueError: The delay or the key is not valid.
        """
        delay_ms = milliseconds_of("the delay of a message", delay)
        body = json_object(
            message=encode(message, "a message", VALUE_BYTES_TOP),
            delaySeconds=json.dumps(delay_ms / 1_000) if delay_ms else None,
            deploymentId=None if deployment is None else json.dumps(deployment),
            headers=json.dumps(dict(headers)) if headers else None,
        )
        answer = await self._session.write(
            self._session.gateway_path("v1", "queues", queue, "messages"),
            body,
            repeat=Repeat.SAFE,
            key=self._session.new_id() if key is None else key,
        )
        return value_of(answer, MessagePublished)

    async def list(self) -> QueueList:
        """Return queues with messages that are not delivered yet."""
        return await self._session.read(self._session.gateway_path("v1", "queues"), QueueList)
