"""Pages of rows of workflows: where they begin, their queries, and the cursors behind them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final, Generic, Literal, LiteralString, TypeAlias, TypeVar

import msgspec
from psycopg import sql

from headwater.projections.postgres.cursors import pack, place_taken, unpack
from headwater.projections.postgres.reader import PooledReader, Row, bounded
from headwater.projections.postgres.statements import filled, template
from headwater.projections.workflows.answers import Page

Order: TypeAlias = Literal["asc", "desc"]
R = TypeVar("R", bound=msgspec.Struct)

#: The numbers that Postgres's bigint can hold.
_NUMBER_MIN: Final = -(2**63)
_NUMBER_MAX: Final = 2**63 - 1
#: Conditions of listings that are not about a column that is equal.
_CONDITIONS: Final[Mapping[str, LiteralString]] = {
    "labels": "and {} @> {}::jsonb",
    "updated_since": "and updated_at >= {1}::timestamptz",
    "updated_before": "and updated_at < {1}::timestamptz",
}


# --- places: what a cursor holds, named as the query's parameters -------------------------------


class OfInstance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of an instance: by the time of its creation."""

    created_at: datetime
    workflow_name: str
    instance_id: str


class OfStep(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of an entry of a run."""

    ordinal: int
    sequence: int


class OfToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a token of a run."""

    id: int


class OfJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a job that has not ended."""

    created_at: datetime
    workflow_name: str
    instance_id: str
    run_number: int
    id: int


class OfEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of an event of a run."""

    sequence: int


class OfLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a line."""

    id: str


#: Workflows of authors, without those that come with Headwater.
OF_AUTHORS: Final = sql.SQL(
    "not starts_with(name, 'headwater-') "
    "and name not in ('terra-backfill', 'terra-import', 'terra-lab', 'terra-reconcile')"
)
#: The workflows that owners and the active deployment declare.
DECLARED: Final = template("declared_workflows")
STANDING: Final = template("workflow_standing").format(declared=DECLARED)
#: The workflows of authors that have instances, by their names.
NAMES_WITH_INSTANCES: Final = template("workflow_names_of_instances").format(of_authors=OF_AUTHORS)
#: Which workflows a listing is of.
_WORKFLOWS: Final[Mapping[str, sql.Composable]] = {
    "workflow_instances": sql.SQL("select {}::text").format(sql.Placeholder("workflow")),
    "instances_of_all": NAMES_WITH_INSTANCES,
}

#: Where pages begin, by order: what no row comes before.
_BEGIN: Final[dict[type[msgspec.Struct], dict[Order, dict[str, object]]]] = {
    OfInstance: {
        "asc": {"created_at": "-infinity", "workflow_name": "", "instance_id": ""},
        "desc": {"created_at": "infinity", "workflow_name": "", "instance_id": ""},
    },
    OfStep: {
        "asc": {"ordinal": -1, "sequence": _NUMBER_MIN},
        "desc": {"ordinal": _NUMBER_MAX, "sequence": _NUMBER_MAX},
    },
    OfToken: {"asc": {"id": -1}, "desc": {"id": _NUMBER_MAX}},
    OfJob: {
        "asc": {
            "created_at": "-infinity",
            "workflow_name": "",
            "instance_id": "",
            "run_number": -1,
            "id": -1,
        }
    },
    OfEvent: {"asc": {"sequence": _NUMBER_MIN}, "desc": {"sequence": _NUMBER_MAX}},
    OfLine: {"asc": {"id": ""}, "desc": {"id": "~"}},
}


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Rows that are read page by page: their query, what a cursor holds, what a row is."""

    name: str
    place: type[msgspec.Struct]
    answer: Callable[[Row], R]

    def query(self, order: Order, filters: Iterable[str] = ()) -> bytes:
        """The query in one of its orders, with the filters of these names."""
        return _filled(self.name, order, tuple(filters))

    def begin(self, order: Order, after: str | None) -> dict[str, object]:
        """Where a page begins, as parameters of its query.

        Errors: InvalidCursor.
        """
        if after is None:
            return dict(_BEGIN[self.place][order])
        return msgspec.structs.asdict(unpack(after, self.place))

    def page(self, shown: Sequence[Row], *, more: bool) -> Page[R]:
        """Rows as a page, with a cursor if there are more of them."""
        rows = tuple(map(self.answer, shown))
        if not more:
            return Page(rows=rows, cursor=None)
        return Page(
            rows=rows, cursor=pack([shown[-1][name] for name in self.place.__struct_fields__])
        )


async def page_of(  # noqa: PLR0913 (what makes a page)
    reader: PooledReader,
    listing: Listing[R],
    bound: Mapping[str, object],
    *,
    filters: Mapping[str, object] | None = None,
    order: Order,
    limit: int,
    after: str | None,
) -> Page[R]:
    """A page of a listing; filters that are None let everything pass.

    Errors: InvalidCursor, StoreUnavailable; ValueError for a limit out of range.
    """
    wanted = {name: value for name, value in (filters or {}).items() if value is not None}
    query, limit = listing.query(order, wanted), bounded(limit)
    bound = {**bound, **wanted, **listing.begin(order, after)}
    found = await rows_of(reader, query, bound, limit)
    return listing.page(found[:limit], more=len(found) > limit)


async def rows_of(
    reader: PooledReader, query: bytes, bound: Mapping[str, object], limit: int
) -> Sequence[Row]:
    """The rows of a page, and one more if there is one: it tells that something is left."""
    with place_taken():
        return await reader.answers(query, **bound, limit=limit + 1)


@cache
def _filled(name: str, order: Order, filters: tuple[str, ...]) -> bytes:
    """A listing in one of its orders, with the filters that are asked for.

    Only so can Postgres tell that an index answers it.
    """
    conditions = [
        sql.SQL(_CONDITIONS.get(each, "and {} = {}")).format(
            sql.Identifier(each), sql.Placeholder(each)
        )
        for each in filters
    ]
    listing = {"workflows": _WORKFLOWS[name], "standing": STANDING} if name in _WORKFLOWS else {}
    return filled(
        "workflow_instances" if listing else name,
        **listing,
        filter=sql.SQL(" ").join(conditions),
        order=sql.SQL("asc") if order == "asc" else sql.SQL("desc"),
        beyond=sql.SQL(">") if order == "asc" else sql.SQL("<"),
    )
