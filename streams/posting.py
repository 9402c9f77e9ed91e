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
        await self._appender.append([await self._command(command) for command in commands])

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
            await self._appender.stop(within_s=_RETRY_S)

    async def _round(self) -> None:
        waiting, self._waiting = self._waiting, {}
        letters, self._letters = self._letters, []
        try:
            await self._appender.append(letters)
        except BrokerUnavailable as error:
            self._letters = letters + self._letters
            await self._later(error)
        by_topics: dict[frozenset[str], dict[str, list[Post]]] = {}
        for key, posts in waiting.items():
            topics = frozenset(post.topic or WORKFLOW_COMMANDS for post in posts)
            by_topics.setdefault(topics, {})[key] = posts
        for group in by_topics.values():
            await self._send_group(group)

    async def _send_group(self, group: dict[str, list[Post]]) -> None:
        try:
            records = [
                await self._record(key, post) for key, posts in group.items() for post in posts
            ]
            await self._appender.append(records)
        except BrokerUnavailable as error:
            for key, posts in group.items():
                self._waiting[key] = posts + self._waiting.get(key, [])
            await self._later(error)
            return
        for key, posts in group.items():
            self._sent(key, posts[-1].number)

    async def _later(self, error: BrokerUnavailable) -> None:
        log.warning("what workflows send has to wait: %s", error)
        asyncio.get_running_loop().call_later(_RETRY_S, self._stirred.set)
        await self._appender.stop(within_s=_RETRY_S)

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
