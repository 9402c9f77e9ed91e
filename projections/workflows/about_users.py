"""Find the instances about a user, for a wipe, and read the progress of the wipe.

An instance is about the user that its params name in `user_id`, and so are its children.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.processors.wipes import FORGET, ForgetResult, digest
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.statuses import RunStatus

__all__ = ["About", "about", "forgotten", "wiped_partitions"]

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
