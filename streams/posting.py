"""Sends what instances have queued: commands to other instances, records to topics.

Posts of one instance are sent in their order, and it is told once Kafka has acknowledged them. A
topic that cannot be written to holds up the instances that write to it, and no others.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from schemas.codec import encode
from schemas.errors import BrokerUnavailable, HeadwaterError
from schemas.history import CommandSent, Post, instance_key
from schemas.topics import WORKFLOW_COMMANDS
from streams.appender import Appender
from streams.dead_letters import dead_letter
from streams.effects import Queued
from streams.records import Incoming, Outgoing, partition_of

log = logging.getLogger(__name__)

_RETRY_S: Final = 2.0


class Posting:
    """The post office of a worker.

    Shape:  `sent` is called with (instance key, number of the last post) when posts are durable.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        client_id: str,
        clock: Callable[[], int],
        sent: Callable[[str, int], None],
    ) -> None:
        self._appender = Appender(bootstrap=bootstrap, client_id=client_id)
        self._clock = clock
        self._sent = sent
        self._waiting: dict[str, list[Post]] = {}
        #: What is being sent, by the topics that it goes to, and whose it is.
        self._lanes: dict[frozenset[str], asyncio.Task[None]] = {}
        self._busy: set[str] = set()
        self._letters: list[Outgoing] = []
        self._stirred = asyncio.Event()

    def queue(self, queued: Queued) -> None:
        """Takes posts of an instance."""
        self._waiting.setdefault(queued.key, []).extend(queued.posts)
        self._stirred.set()

    async def deliver(self, commands: Sequence[CommandSent]) -> None:
        """Sends commands that no outbox holds; returns when they are durable.

        Errors: BrokerUnavailable.
        """
        await self._append([await self._command(command) for command in commands])

    def park(self, record: Incoming, error: HeadwaterError) -> None:
        """Takes a command that cannot be read, for the dead letters."""
        letter = dead_letter(
            record,
            stage="workflows",
            reason=error.code,
            detail=error.message,
            now_ms=self._clock(),
            error=error,
        )
        self._letters.append(letter)
        self._stirred.set()

    def forget(self, keys: Callable[[str], bool]) -> None:
        """Drops the posts of instances that have another owner now, who will send them."""
        for key in [key for key in self._waiting if keys(key)]:
            del self._waiting[key]

    async def run(self) -> None:
        """Sends until it is cancelled."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                await self._round()
        finally:
            for lane in self._lanes.values():
                lane.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)
            await self._appender.stop(within_s=_RETRY_S)

    async def _round(self) -> None:
        letters, self._letters = self._letters, []
        try:
            await self._append(letters)
        except BrokerUnavailable as error:
            self._letters = letters + self._letters
            log.warning("dead letters have to wait: %s", error)
            asyncio.get_running_loop().call_later(_RETRY_S, self._stirred.set)
        by_topics: dict[frozenset[str], dict[str, list[Post]]] = {}
        for key in [key for key in self._waiting if key not in self._busy]:
            topics = frozenset(post.topic or WORKFLOW_COMMANDS for post in self._waiting[key])
            if topics not in self._lanes:
                by_topics.setdefault(topics, {})[key] = self._waiting.pop(key)
        for topics, group in by_topics.items():
            self._busy.update(group)
            self._lanes[topics] = asyncio.create_task(self._send_group(topics, group))

    async def _send_group(self, topics: frozenset[str], group: dict[str, list[Post]]) -> None:
        """Sends posts that go to the same topics; an instance has one group under way."""
        try:
            records = [
                await self._record(key, post) for key, posts in group.items() for post in posts
            ]
            await self._append(records)
        except BrokerUnavailable as error:
            for key, posts in group.items():
                self._waiting[key] = posts + self._waiting.get(key, [])
            log.warning("what workflows send has to wait: %s", error)
            await asyncio.sleep(_RETRY_S)
        else:
            for key, posts in group.items():
                self._sent(key, posts[-1].number)
        finally:
            self._busy.difference_update(group)
            del self._lanes[topics]
            self._stirred.set()

    async def _append(self, records: Sequence[Outgoing]) -> None:
        try:
            await self._appender.append(records)
        except BrokerUnavailable:
            # Of no more use now; a topic that is not there is no fault of the producer's.
            await self._appender.stop(within_s=_RETRY_S)
            raise

    async def _command(self, command: CommandSent) -> Outgoing:
        key = instance_key(command.workflow, command.instance_id).encode()
        count = await self._appender.partitions(WORKFLOW_COMMANDS)
        return Outgoing(WORKFLOW_COMMANDS, partition_of(key, count), key, encode(command))

    async def _record(self, sender: str, post: Post) -> Outgoing:
        if post.command is not None:
            return await self._command(
                CommandSent(
                    command_id=f"{sender}#{post.number}",
                    workflow=post.workflow or "",
                    instance_id=post.instance_id or "",
                    sent_at_ms=self._clock(),
                    reply_to=-1,
                    command=post.command,
                )
            )
        topic = post.topic or ""
        count = await self._appender.partitions(topic)
        key = None if post.key is None else post.key.encode()
        headers = [("headwater-id", f"{sender}#{post.number}".encode())]
        place = partition_of(key or sender.encode(), count)
        return Outgoing(topic, place, key, (post.value or "null").encode(), headers)
