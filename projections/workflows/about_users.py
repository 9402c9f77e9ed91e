"""Instances that are about a user: those that a wipe has to find, and how far it is with them.

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

#: Rows of a query: params may be large.
_PAGE: Final = 100
_ENDED: Final = frozenset({RunStatus.COMPLETE, RunStatus.ERRORED, RunStatus.TERMINATED})


class About(msgspec.Struct, frozen=True):
    """An instance that is about a user, and whether it has ended."""

    workflow: str
    instance_id: str
    ended: bool


async def about(
    reader: PooledReader, user_sha256: str, *, ordered_at: datetime, until: datetime
) -> AsyncIterator[About]:
    """The instances about a user that a wipe covers.

    Shape:  those that were created until a time; but not those of the time since the order that a
            delivery has started which was not wiped: they are new.
    Errors: StoreUnavailable.
    """
    place = {"workflow_name": "", "instance_id": ""}
    while rows := await reader.answers(statement("instances_named"), **place, limit=_PAGE):
        for row in rows:
            is_new = row["has_effect"] and row["created_at"] >= ordered_at
            if row["created_at"] <= until and not is_new and _names(row["params"], user_sha256):
                async for each in _with_children(reader, row):
                    yield each
        place = {name: rows[-1][name] for name in place}


async def wiped_partitions(reader: PooledReader, user_sha256: str, ordered_at_ms: int) -> int:
    """How many partitions have carried out a wipe of a user, or a later one.

    Errors: StoreUnavailable.
    """
    named = {"user_sha256": user_sha256, "ordered_at_ms": ordered_at_ms}
    rows = await reader.answers(statement("wiped_partitions"), **named)
    return int(rows[0]["done"])


async def forgotten(reader: PooledReader, wipe_id: str) -> ForgetResult | None:
    """What a wipe has removed of instances; None when that is not done.

    Errors: StoreUnavailable.
    """
    named = {"workflow_name": FORGET, "instance_id": wipe_id}
    (row,) = await reader.answers(statement("wipe_of_instances"), **named)
    if row["output"] is not None:
        return msgspec.json.decode(row["output"], type=ForgetResult)
    return None if row["has_workers"] else ForgetResult()


def _names(params: str, user_sha256: str) -> bool:
    try:
        value = msgspec.json.decode(params)
    except PARSE_ERRORS:
        return False  # Params that Postgres takes and we do not name nobody whom we know.
    user = value.get("user_id") if isinstance(value, dict) else None
    return isinstance(user, str) and digest(user) == user_sha256


async def _with_children(reader: PooledReader, row: dict[str, Any]) -> AsyncIterator[About]:
    found = [row]
    while found:
        each = found.pop()
        named = {name: each[name] for name in ("workflow_name", "instance_id")}
        is_ended = each["status"] in _ENDED
        yield About(each["workflow_name"], each["instance_id"], is_ended)
        found += await reader.answers(statement("children_of_instance"), **named)
