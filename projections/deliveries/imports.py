"""Requests of a user's past data: what Terra answered, what has come, and what is missing."""

from collections.abc import Sequence
from datetime import date, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from headwater.projections.postgres.connections import PooledReader
from headwater.projections.postgres.statements import statement

#: Newest imports that are returned: each reads the days and deliveries of its range.
IMPORTS_MAX: Final = 10


class ImportNames(NamedTuple):
    """Names that the built-in workflows of imports use.

    Attributes:
        imports: The workflow of imports of users and operators.
        backfills: The workflow of a connection that became active.
        backfill_days: Days that it requests.
        types: Types of data that are requested of a connection.
        refused: Name of the error of a refused request.
        label: Label of an import that identifies its user.
    """

    imports: str
    backfills: str
    backfill_days: int
    types: tuple[str, ...]
    refused: str
    label: str


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One type of data that was requested of a connection, and what has come.

    Attributes:
        answer: Terra's answer: `taken`, `unsupported` (the connection does not have this type),
            `unknown` (Terra does not have the connection, or not this type), `refused`, `failed`,
            or `pending`.
        deliveries: Deliveries of this type within 7 days after the request, those of newer data
            among them.
        rows: Rows that they set values of.
        days_with_data: Days of the import with data, whenever it came.
        missing_days: Days without; null for activity and body, which not every day has.
    """

    terra_user_id: str
    provider: str | None
    type: str
    answer: str
    deliveries: int
    rows: int
    last_delivery_at: datetime | None
    days_with_data: int
    missing_days: int | None


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """A request of past data: of a user or operator, or for a connection that became active.

    Attributes:
        workflow: `terra-import` or `terra-backfill`.
        id: The instance.
        status: Its status; `complete` means that Terra has answered all requests.
        first_day: First day of the data.
        last_day: Last day; it was not over at the request, so it does not count as missing.
    """

    workflow: str
    id: str
    status: str
    requested_at: datetime
    first_day: date
    last_day: date
    requests: list[ImportRequest]


async def imports_of(
    reader: PooledReader, names: ImportNames, user_id: str, label: str
) -> list[Import]:
    """Return the latest imports of a user, newest first.

    Args:
        reader: Reads Postgres.
        names: Names in the built-in workflows.
        user_id: The user.
        label: Value of the label that identifies the user.

    Raises:
        StoreUnavailable: Postgres does not answer.
    """
    rows = await reader.answers(
        statement("imports_of_user"),
        user_id=user_id,
        labels=msgspec.json.encode({names.label: label}).decode(),
        imports=names.imports,
        backfills=names.backfills,
        backfill_days=names.backfill_days,
        types=list(names.types),
        refused=names.refused,
        limit=IMPORTS_MAX,
    )
    return [_import(list(group)) for _, group in groupby(rows, _instance)]


def _instance(row: dict[str, Any]) -> tuple[str, str]:
    return row["workflow"], row["id"]


def _import(rows: Sequence[dict[str, Any]]) -> Import:
    return msgspec.convert({**rows[0], "requests": rows}, Import)
