"""Queries of instances of all workflows: counts, those past retention, those about a user.

An instance is about the user that its params name in `user_id`, and so are its children.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
from psycopg import sql

from headwater.processors.trace_spans import TracedRun, TracedStep
from headwater.processors.wipes import FORGET, ForgetResult, digest
from headwater.projections.postgres.connections import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, statement, template
from headwater.projections.workflows.listings import OF_AUTHORS
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.statuses import RunStatus


class InstanceCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of a workflow's instances with one status."""

    workflow: str
    status: str
    instances: int
    built_in: bool


class FailedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a workflow that may need a person, with the same state and error.

    Attributes:
        workflow: The workflow.
        state: errored, retrying (a step has failed at least twice), or stuck (it should have
            continued long ago).
        error: Name of the error; empty for stuck runs.
        message: Message of the newest error.
        runs: Number of runs, up to a limit.
        new: How many of them since the requested time.
        first_at: When the first of them failed, or should have continued.
        last_at: When the last of them did.
        instance_id: The newest of them.
    """

    workflow: str
    state: str
    error: str
    message: str
    runs: int
    new: int
    first_at: datetime
    last_at: datetime
    instance_id: str


#: Runs that are counted of a workflow and state, and of all those that are tried again.
FAILED_RUNS_MAX: Final = 1000
#: Groups that are returned.
GROUPS_MAX: Final = 100


async def instance_counts(reader: PooledReader) -> list[InstanceCount]:
    """Return the number of instances by workflow and status, including built-in workflows.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    query = filled("instance_counts", of_authors=OF_AUTHORS)
    return msgspec.convert(await reader.answers(query), list[InstanceCount])


async def failed_runs(reader: PooledReader, since: datetime | None = None) -> list[FailedRuns]:
    """Return the errored and retrying runs, by workflow, state and error.

    Args:
        reader: Reads Postgres.
        since: From when on runs count as new; None for none of them.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    names = template("workflow_names_of_instances").format(of_authors=sql.SQL("name is not null"))
    parameters = {
        "since": since or "infinity",
        "limit": FAILED_RUNS_MAX,
        "groups": GROUPS_MAX,
    }
    rows = await reader.answers(filled("failed_runs", workflows=names), **parameters)
    return msgspec.convert(rows, list[FailedRuns])


async def open_with_labels(
    reader: PooledReader, workflow: str, labels: Mapping[str, str], limit: int
) -> int:
    """Return how many instances with labels have not ended; at most `limit`.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    (row,) = await reader.answers(
        statement("open_instances_with_labels"),
        workflow_name=workflow,
        labels=msgspec.json.encode(labels).decode(),
        limit=limit,
    )
    return int(row["instances"])


class StuckInstance(NamedTuple):
    """An instance, and since when it should have continued, in Unix milliseconds."""

    workflow: str
    instance_id: str
    run: int
    since_ms: int


async def stuck_instances(reader: PooledReader, before_ms: int, limit: int) -> list[StuckInstance]:
    """Return instances that should have continued before a time, the longest first.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("stuck_instances"), before_ms=before_ms, limit=limit)
    return [StuckInstance(**row) for row in rows]


def of_stuck(stuck: Iterable[StuckInstance], since: datetime | None) -> list[FailedRuns]:
    """Return stuck instances by workflow.

    Args:
        stuck: The instances.
        since: From when on they count as new; None for none of them.
    """
    workflows: dict[str, list[StuckInstance]] = {}
    for instance in stuck:
        workflows.setdefault(instance.workflow, []).append(instance)
    new_ms = inf if since is None else since.timestamp() * 1000
    groups = []
    for workflow, instances in workflows.items():
        first = min(instances, key=lambda instance: instance.since_ms)
        last = max(instances, key=lambda instance: instance.since_ms)
        groups.append(
            FailedRuns(
                workflow=workflow, state="stuck", error="", message="", runs=len(instances),
                new=sum(instance.since_ms >= new_ms for instance in instances),
                first_at=datetime.fromtimestamp(first.since_ms / 1000, UTC),
                last_at=datetime.fromtimestamp(last.since_ms / 1000, UTC),
                instance_id=last.instance_id,
            )
        )  # fmt: skip
    return groups


# -- past retention


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Selects instances: kept until `until`, RFC 3339; of one workflow, or of all."""

    until: str
    workflow: str | None = None


class PruneCursor(NamedTuple):
    """Position of a prune: the last instance it handled; by default, before all."""

    after_until: str = "-infinity"
    after_workflow: str = ""
    after_id: str = ""


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """An expired instance, as Postgres knew it."""

    workflow: str
    instance_id: str
    retention_until: datetime
    updated_at: datetime

    @property
    def cursor(self) -> PruneCursor:
        """Position of a prune after this instance."""
        return PruneCursor(self.retention_until.isoformat(), self.workflow, self.instance_id)


async def expired_counts(reader: PooledReader, expiry: Expiry) -> dict[str, int]:
    """Return the number of expired instances by workflow.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(statement("expired_counts"), **_parameters(expiry))
    return {row["workflow"]: row["instances"] for row in rows}


async def expired(
    reader: PooledReader, expiry: Expiry, after: PruneCursor, limit: int
) -> list[Expired]:
    """Return the next expired instances after a position.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {**_parameters(expiry), **after._asdict(), "limit": limit}
    rows = await reader.answers(statement("expired_instances"), **parameters)
    return msgspec.convert(rows, list[Expired])


def _parameters(expiry: Expiry) -> dict[str, Any]:
    return {"until": expiry.until, "workflow": expiry.workflow}


# -- about a user

#: Rows per query; params may be large.
_PAGE: Final = 100
_ENDED: Final = frozenset({RunStatus.COMPLETE, RunStatus.ERRORED, RunStatus.TERMINATED})


class About(msgspec.Struct, frozen=True):
    """An instance about a user, and whether it has ended."""

    workflow: str
    instance_id: str
    ended: bool


async def about(
    reader: PooledReader, user_sha256: str, *, ordered_at: datetime, until: datetime
) -> AsyncIterator[About]:
    """Yield the instances about a user that a wipe covers.

    Instances created up to `until` are covered, except new ones: those that a delivery started
    after the order without being wiped.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    cursor = {"workflow_name": "", "instance_id": ""}
    while rows := await reader.answers(statement("instances_named"), **cursor, limit=_PAGE):
        for row in rows:
            is_new = row["has_effect"] and row["created_at"] >= ordered_at
            if row["created_at"] <= until and not is_new and _names(row["params"], user_sha256):
                async for instance in _with_children(reader, row):
                    yield instance
        cursor = {name: rows[-1][name] for name in cursor}


async def wiped_partitions(reader: PooledReader, user_sha256: str, ordered_at_ms: int) -> int:
    """Return how many partitions have carried out this wipe of a user, or a later one.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"user_sha256": user_sha256, "ordered_at_ms": ordered_at_ms}
    rows = await reader.answers(statement("wiped_partitions"), **parameters)
    return int(rows[0]["done"])


async def forgotten(reader: PooledReader, wipe_id: str) -> ForgetResult | None:
    """Return what a wipe has removed of instances; None if it is not done.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    parameters = {"workflow_name": FORGET, "instance_id": wipe_id}
    (row,) = await reader.answers(statement("wipe_of_instances"), **parameters)
    if row["output"] is not None:
        return msgspec.json.decode(row["output"], type=ForgetResult)
    return None if row["has_workers"] else ForgetResult()


def _names(params: str, user_sha256: str) -> bool:
    try:
        value = msgspec.json.decode(params)
    except PARSE_ERRORS:
        return False  # Postgres accepts such params; a known user is never named in them.
    user = value.get("user_id") if isinstance(value, dict) else None
    return isinstance(user, str) and digest(user) == user_sha256


async def _with_children(reader: PooledReader, row: dict[str, Any]) -> AsyncIterator[About]:
    pending = [row]
    while pending:
        instance = pending.pop()
        key = {name: instance[name] for name in ("workflow_name", "instance_id")}
        is_ended = instance["status"] in _ENDED
        yield About(instance["workflow_name"], instance["instance_id"], is_ended)
        pending += await reader.answers(statement("children_of_instance"), **key)


# -- spans


class SpanKey(NamedTuple):
    """Position of an export of spans: a run, and the key of an entry; by default, before all."""

    workflow_name: str = ""
    instance_id: str = ""
    run_number: int = -1
    key: str = ""


async def traced_runs(
    reader: PooledReader, since: datetime, until: datetime, after: SpanKey, limit: int
) -> list[TracedRun]:
    """Return runs that were active in a time, in the order of their keys.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await _traced(reader, "traced_runs", since, until, after, limit)
    return msgspec.convert(rows, list[TracedRun])


async def traced_steps(
    reader: PooledReader, since: datetime, until: datetime, after: SpanKey, limit: int
) -> list[TracedStep]:
    """Return entries of code that changed in a time, in the order of their keys.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await _traced(reader, "traced_steps", since, until, after, limit)
    return msgspec.convert(rows, list[TracedStep])


async def traced_tokens(
    reader: PooledReader, since: datetime, until: datetime, after: SpanKey, limit: int
) -> list[TracedStep]:
    """Return tokens of graphs that changed in a time, in the order of their keys.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    after = after._replace(key=after.key or "-1")
    rows = await _traced(reader, "traced_tokens", since, until, after, limit)
    return msgspec.convert(rows, list[TracedStep])


async def _traced(
    reader: PooledReader, query: str, since: datetime, until: datetime, after: SpanKey, limit: int
) -> list[Row]:
    begin = after._asdict() | {"since": since, "until": until, "limit": bounded(limit)}
    return await reader.answers(statement(query), **begin)
