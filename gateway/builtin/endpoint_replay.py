"""The workflow that sends an endpoint what happened within a time.

It reads the logs again, page by page, and derives the same notifications with the same ids. What
was never sent, because the endpoint was disabled, is sent; a delivery that failed or waits is
started again. After a crash it continues after the last page; a page in progress is repeated.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka import TopicPartition

from headwater.gateway.builtin.instances import PAGE, RESEND, PageProgress, ResendParams
from headwater.gateway.client.requests import ulid_source
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.processors.code.errors import NonRetryableError
from headwater.processors.endpoints import Endpoint
from headwater.processors.notifications import NOTIFY, instance_id, sending
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.failures import INSTANCE_EXISTS
from headwater.schemas.history import Command, RestartRun
from headwater.schemas.newer import readable
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.workflow_values import Break, Continue, Retry, WorkflowEvent
from headwater.streams.clock import now_ms
from headwater.streams.kafka.cluster import Cluster, standalone_consumer
from headwater.streams.kafka.endpoint_log import EndpointLog
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Incoming
from headwater.streams.replay.step import Step
from headwater.streams.replay.workflow import Workflow
from headwater.streams.starters.notification_records import notifications_of, topics_of
from headwater.streams.workflows.client import Addressed, WorkflowClient

#: Offsets of a page; compaction leaves fewer records.
_PAGE_OFFSETS: Final = 2_000
#: Commands that are sent together.
_GROUP: Final = 50
_PAGE_TIMEOUT: Final = "10 minutes"
#: Latest pages that are kept in the history for inspection.
_KEPT: Final = 10
_UNTIL_IT_WORKS: Final = Retry(limit=inf, delay="10 seconds", backoff="constant")
_OUTCOME_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.2
_POLLS: Final = 75


class LogRange(NamedTuple):
    """Records of a partition."""

    topic: str
    partition: int
    start: int
    end: int


class EndpointReplays:
    """Reads logs again for an endpoint.

    Args:
        endpoints: The topic of endpoints.
        cluster: The cluster.
        client: Sends commands.
        retries_ms: Pauses between attempts to send a notification, in milliseconds.
    """

    def __init__(
        self,
        endpoints: EndpointLog,
        cluster: Cluster,
        client: WorkflowClient,
        retries_ms: tuple[int, ...],
    ) -> None:
        self._endpoints = endpoints
        self._cluster = cluster
        self._client = client
        self._retries_ms = retries_ms
        self._connected = False

    async def ranges(self, params: ResendParams) -> list[LogRange]:
        """Return the records of the time that the endpoint may receive notifications of.

        Raises:
            BrokerUnavailable: No broker answered.
            NonRetryableError: The endpoint was disabled or deleted.
        """
        created = (await self._endpoint(params.endpoint)).created
        topics = sorted(topics_of(created.types, created.tables))
        async with standalone_consumer(self._cluster, purpose="positions") as consumer:
            metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 (no public way)
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                for number in sorted(metadata.partitions_for_topic(topic) or ())
            ]
            ends = await consumer.end_offsets(partitions)
            starts = await consumer.offsets_for_times(dict.fromkeys(partitions, params.since_ms))
            stops = await consumer.offsets_for_times(dict.fromkeys(partitions, params.until_ms))
        first = {tp: at.offset for tp, at in starts.items() if at is not None}
        last = {tp: at.offset for tp, at in stops.items() if at is not None}
        return [
            LogRange(*tp, first[tp], last.get(tp, ends[tp])) for tp in partitions if tp in first
        ]

    async def send_page(self, params: ResendParams, page: LogRange) -> tuple[int, int]:
        """Send what a page of a log leads to.

        Returns:
            Numbers of notifications that were sent, and of deliveries that were started again.

        Raises:
            BrokerUnavailable, OutcomeUnknown: The page has to be sent again.
            NonRetryableError: The endpoint was disabled or deleted.
        """
        endpoint = await self._endpoint(params.endpoint)
        starts: list[Addressed] = []
        reading = read_partition(
            self._cluster, [page.topic], page.partition, start=page.start, end=page.end
        )
        async with aclosing(reading) as batches:
            async for records in batches:
                starts += self._starts(endpoint, readable(records)[0])
        await self._connect()
        sent = restarted = 0
        for at in range(0, len(starts), _GROUP):
            group = starts[at : at + _GROUP]
            replies = await self._client.send_many(group)
            sent += sum(not reply.code for reply in replies)
            again = [
                msgspec.structs.replace(start, command=RestartRun(), command_id=None)
                for start, reply in zip(group, replies, strict=True)
                if reply.code == INSTANCE_EXISTS
                and (params.delivered or reply.status != RunStatus.COMPLETE)
            ]
            restarted += sum(not reply.code for reply in await self._client.send_many(again))
        return sent, restarted

    def _starts(self, endpoint: Endpoint, records: Sequence[Incoming]) -> list[Addressed]:
        starts: list[Addressed] = []
        for notification in notifications_of(records):
            if endpoint.takes(notification):
                command: Command = sending(notification, endpoint.id, self._retries_ms)
                starts.append(Addressed(NOTIFY, instance_id(notification, endpoint.id), command))
        return starts

    async def _endpoint(self, endpoint_id: str) -> Endpoint:
        endpoint = (await self._endpoints.catch_up()).by_id.get(endpoint_id)
        if endpoint is None or not endpoint.is_active:
            raise NonRetryableError(f"expected {endpoint_id} to be active, found it is not")
        return endpoint

    async def _connect(self) -> None:
        if not self._connected:
            await self._client.start()
            self._connected = True
        for _ in range(_POLLS):
            if self._client.ready:
                return
            await asyncio.sleep(_POLL_S)
        raise BrokerUnavailable(f"Kafka at {self._cluster} is not connected")


def replays_of(settings: Settings, endpoints: EndpointLog) -> EndpointReplays:
    """Return the replays of a system."""
    cluster = cluster_of(settings)
    client = WorkflowClient(
        cluster=cluster,
        client_id=f"{socket.gethostname()}-{os.getpid()}-endpoint-replays",
        timeout_s=_OUTCOME_WITHIN_S,
        clock=now_ms,
        new_id=ulid_source(now_ms, os.urandom),
    )
    return EndpointReplays(endpoints, cluster, client, settings.endpoint_retries_ms)


def endpoint_replay_workflow(replays: Callable[[], Awaitable[EndpointReplays]]) -> Workflow:
    """Return the workflow."""

    async def resend(event: WorkflowEvent[ResendParams], step: Step) -> dict[str, Any]:
        params = event.payload

        async def find() -> list[LogRange]:
            return await (await replays()).ranges(params)

        ranges = msgspec.convert(
            await step.do("ranges", find, retries=_UNTIL_IT_WORKS), list[LogRange]
        )

        async def turn(step: Step, plain: Any) -> Continue | Break:  # noqa: ANN401
            before = msgspec.convert(plain, PageProgress)
            page, after = _next_page(ranges, before.after or ())
            if page is None:
                return Break(plain)

            async def once() -> Any:  # noqa: ANN401
                sent, restarted = await (await replays()).send_page(params, page)
                progress = PageProgress(
                    done=before.done + sent, skipped=before.skipped + restarted, after=after
                )
                return msgspec.to_builtins(progress)

            return Continue(
                await step.do(PAGE, once, retries=_UNTIL_IT_WORKS, timeout=_PAGE_TIMEOUT)
            )

        plain = await step.loop(
            "pages",
            turn,
            state=msgspec.to_builtins(PageProgress()),
            commit_interval=1,
            history_every=_KEPT,
            history_keep=_KEPT,
        )
        done = msgspec.convert(plain, PageProgress)
        return {"sent": done.done, "restarted": done.skipped}

    return Workflow(RESEND, resend, strict=False)


def _next_page(
    ranges: list[LogRange], after: tuple[str, ...]
) -> tuple[LogRange | None, tuple[str, ...]]:
    """Return the page after a cursor, and the cursor after it; None after the last page.

    A cursor is the number of a range, and the next offset in it.
    """
    number, offset = (int(after[0]), int(after[1])) if after else (0, 0)
    while number < len(ranges):
        whole = ranges[number]
        start = max(whole.start, offset)
        if start < whole.end:
            end = min(start + _PAGE_OFFSETS, whole.end)
            return whole._replace(start=start, end=end), (str(number), str(end))
        number, offset = number + 1, 0
    return None, ()
