"""What is asked in queries and headers, checked; pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.positions import PARAMETER, read_positions
from headwater.processors.runs.limits import LOG_CATEGORY_MAX
from headwater.projections.workflows.queries import Order
from headwater.schemas.statuses import RunStatus

#: Every value that a query gives to a name.
Query: TypeAlias = Mapping[str, Sequence[str]]

STATUSES: Final = tuple(status.value for status in RunStatus)
LEVELS: Final = ("debug", "info", "warn", "error")
ORDERS: Final = ("asc", "desc")
FLAGS: Final = {"true": True, "false": False, "1": True, "0": False}
PAGE_DEFAULT: Final = 50
#: Rows of a page; each may carry a value of 1 MiB.
PAGE_MAX: Final = 100
RUN_NUMBER_MAX: Final = 2**31 - 1
#: The largest offset that Kafka can have.
OFFSET_MAX: Final = 2**63 - 1
#: Characters of a cursor; ours have some sixty.
_CURSOR_MAX: Final = 1_024


class Listing(NamedTuple):
    """Which instances are asked for."""

    status: RunStatus | None
    page_size: int
    cursor: str | None


class HistoryAsked(NamedTuple):
    """Which part of a history is asked for."""

    run_number: int | None
    page_size: int
    order: Order
    steps_cursor: str | None
    events_cursor: str | None
    include_logs: bool
    logs_cursor: str | None
    log_level: str | None
    log_category: str | None


def read_listing(query: Query) -> Listing:
    """Reads what a listing is asked.

    Errors: Problem that names the field, here and in all below.
    """
    status = _one_of(query, "status", STATUSES)
    return Listing(
        None if status is None else RunStatus(status), _page_size(query), _cursor(query, "cursor")
    )


def read_history(query: Query) -> HistoryAsked:
    """Reads what a history is asked."""
    flag = _one_of(query, "includeLogs", FLAGS)
    category = _single(query, "logCategory")
    if category is not None and not 1 <= len(category) <= LOG_CATEGORY_MAX:
        raise _invalid("logCategory", f"1 to {LOG_CATEGORY_MAX} characters", category)
    return HistoryAsked(
        run_number=_number(query, "runNumber", 0, RUN_NUMBER_MAX),
        page_size=_page_size(query),
        order="desc" if _one_of(query, "order", ORDERS) == "desc" else "asc",
        steps_cursor=_cursor(query, "stepsCursor"),
        events_cursor=_cursor(query, "eventsCursor"),
        include_logs=flag is not None and FLAGS[flag],
        logs_cursor=_cursor(query, "logsCursor"),
        log_level=_one_of(query, "logLevel", LEVELS),
        log_category=category,
    )


def read_min_position(query: Query) -> dict[int, int]:
    """Reads the positions that an answer must have; empty when any will do."""
    return read_positions(query.get(PARAMETER, ()))


def read_last_event_id(query: Query, headers: Mapping[str, str]) -> int | None:
    """Reads behind which event a stream goes on; the header, which browsers send, wins."""
    if "last-event-id" in headers:
        return _number({"Last-Event-ID": [headers["last-event-id"]]}, "Last-Event-ID", -1)
    return _number(query, "lastEventId", -1)


def prefers_async(headers: Mapping[str, str]) -> bool:
    """Whether the caller prefers not to wait until what was done can be read (RFC 7240)."""
    preferences = headers.get("prefer", "").lower().split(",")
    return any(each.partition(";")[0].strip() == "respond-async" for each in preferences)


def _single(query: Query, name: str) -> str | None:
    values = query.get(name, ())
    if len(values) > 1:
        raise Problem(
            "invalid_parameter",
            f"{name}: expected it once, found it {len(values)} times",
            field=name,
        )
    return values[0] if values else None


def _page_size(query: Query) -> int:
    size = _number(query, "pageSize", 1, PAGE_MAX)
    return PAGE_DEFAULT if size is None else size


def _number(query: Query, name: str, least: int, most: int = OFFSET_MAX) -> int | None:
    text = _single(query, name)
    if text is None:
        return None
    digits = text.removeprefix("-") if least < 0 else text
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(most)):
        number = int(text)
        if least <= number <= most:
            return number
    raise _invalid(name, f"a whole number of {least} to {most}", text)


def _one_of(query: Query, name: str, values: Iterable[str]) -> str | None:
    text = _single(query, name)
    if text is not None and text not in values:
        raise _invalid(name, f"one of {', '.join(values)}", text)
    return text


def _cursor(query: Query, name: str) -> str | None:
    text = _single(query, name)
    if text is not None and not 1 <= len(text) <= _CURSOR_MAX:
        raise _invalid(name, "the cursor of an earlier page", text)
    return text


def _invalid(name: str, expected: str, found: str) -> Problem:
    return Problem(
        "invalid_parameter", f"{name}: expected {expected}, found {found[:60]!r}", field=name
    )
