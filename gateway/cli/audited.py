"""Audit entries of commands that change Kafka or Postgres without the gateway.

Like an operation of the gateway, such a command appends `attempted` before it acts, and its result
afterwards. Their key is the user of the operating system, `cli:amara`, and their address the
machine: neither is authenticated. A user with the credentials of Kafka could also
change something without an entry.
"""

import asyncio
import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, NamedTuple, TypeAlias

import click
import msgspec

from headwater.gateway.client.requests import ulid_source
from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.settings import Settings
from headwater.schemas.codec import encode
from headwater.schemas.errors import HeadwaterError
from headwater.schemas.records import OperationAudited
from headwater.schemas.topics import AUDIT
from headwater.streams.clock import now_ms
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.records import Outgoing
from headwater.streams.pipeline.request_logs import PARTITION

_AGENT: Final = f"headwater/{version('headwater')}"
_DETAIL_CHARS: Final = 256
_NEW_ID: Final = ulid_source(now_ms, os.urandom)

AppendEntry: TypeAlias = Callable[[OperationAudited], None]


class Command(NamedTuple):
    """A command for its audit entries.

    Attributes:
        action: Its action, such as topics.skip.
        words: Its words after `headwater`.
        details: What it changes.
    """

    action: str
    words: str
    details: Mapping[str, Any]


@contextmanager
def audited(settings: Settings, command: Command) -> Iterator[None]:
    """Append the attempt of a command before the body runs, and the result after it.

    Raises:
        click.ClickException: The attempt was not stored, and nothing was done; or the body was
            done, and its result was not stored.
    """
    with recorded(_append_to(cluster_of(settings)), settings.project, command, now_ms):
        yield


def append_done(settings: Settings, command: Command) -> None:
    """Append only the result of a command: for one that creates the topic of the log.

    Raises:
        click.ClickException: It was done, and its result was not stored.
    """
    entry = _entry(settings.project, command, "success", now_ms())
    _append_result(_append_to(cluster_of(settings)), command, entry)


@contextmanager
def recorded(
    append: AppendEntry, project: str, command: Command, clock: Callable[[], int]
) -> Iterator[None]:
    """As `audited`, with the function that appends an entry."""
    attempt = _entry(project, command, "attempted", clock())
    try:
        append(attempt)
    except HeadwaterError as error:
        raise click.ClickException(
            f"nothing was done: the audit log did not store the entry of headwater "
            f"{command.words}: {error.message}"
        ) from error
    try:
        yield
    except BaseException as error:
        failed = _entry(project, command, "failure", clock(), attempt=attempt.id, error=str(error))
        try:
            append(failed)
        except HeadwaterError as unrecorded:
            click.echo(f"its failure is not in the audit log: {unrecorded.message}", err=True)
        raise
    done = _entry(project, command, "success", clock(), attempt=attempt.id)
    _append_result(append, command, done)


def _append_result(append: AppendEntry, command: Command, entry: OperationAudited) -> None:
    try:
        append(entry)
    except HeadwaterError as error:
        raise click.ClickException(
            f"headwater {command.words} was done, but the audit log did not store its result: "
            f"{error.message}"
        ) from error


def _append_to(cluster: Cluster) -> AppendEntry:
    async def append(entry: OperationAudited) -> None:
        appender = Appender(cluster=cluster, client_id="headwater-cli-audit")
        key = entry.project_id.encode()
        try:
            await appender.append([Outgoing(AUDIT, PARTITION, key, encode(entry))])
        finally:
            await appender.stop()

    return lambda entry: asyncio.run(append(entry))


def _entry(
    project: str, command: Command, result: str, at_ms: int, **outcome: str
) -> OperationAudited:
    details = {**command.details, **outcome}
    shown = {
        name: value[:_DETAIL_CHARS] if isinstance(value, str) else value
        for name, value in details.items()
        if value is not None
    }
    return OperationAudited(
        id=_NEW_ID(),
        key_id=f"cli:{getpass.getuser()}",
        project_id=project,
        action=command.action,
        resource=f"headwater {command.words}",
        result=result,
        ip=socket.gethostname(),
        user_agent=_AGENT,
        metadata=msgspec.json.encode({"lane": "cli", **shown}, order="sorted").decode(),
        at_ms=at_ms,
    )
