"""Overview and failures: whether the system is ready, how fresh it is, and what needs attention."""

from asyncio import gather
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from litestar import Response

from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.glance import furthest_behind, glance_of, lags_of, samples_of
from headwater.gateway.api.console.page_context import PageContext

#: Newest deliveries on the overview, and how many are read for it: refused sign-ins are left out.
_NEWEST: Final = 8
_NEWEST_READ: Final = 40
#: States of failures, the most urgent first.
_STATES: Final = ("errored", "stuck", "retrying", "dead", "parked")


class Attention(NamedTuple):
    """Failures with the same state.

    Attributes:
        state: errored, stuck, retrying, dead or parked.
        number: How many there are, up to a limit.
        new: How many of them since they were last seen.
        reasons: Names of the errors, or reasons, the most frequent first.
    """

    state: str
    number: int
    new: int
    reasons: tuple[str, ...]


def attention_of(groups: Iterable[Mapping[str, Any]]) -> list[Attention]:
    """Add up groups of failures by state, the most urgent first."""
    numbers, new = Counter[str](), Counter[str]()
    reasons: dict[str, Counter[str]] = {}
    for group in groups:
        state = group["state"]
        number = group["runs"] if "runs" in group else group["deliveries"]
        numbers[state] += number
        new[state] += group["new"]
        name = group["error"] if "error" in group else group["reason"]
        reasons.setdefault(state, Counter())[name] += number
    return [
        Attention(
            state,
            numbers[state],
            new[state],
            tuple(name for name, _ in reasons[state].most_common() if name),
        )
        for state in _STATES
        if numbers[state]
    ]


async def overview(context: PageContext) -> Response[bytes]:
    """Overview: readiness, counts, freshness, and what needs attention."""
    since = context.since(timedelta(days=1))
    seen = context.seen_until()
    get = context.api.get
    ready, day, runs, deliveries, instances, progress, newest, metrics = await gather(
        get("/health/ready"),
        get("/admin/outcomes", [("since", since)]),
        get("/admin/instances/failures", [("since", seen)]),
        get("/admin/dlq/reasons", [("since", seen)]),
        get("/admin/instances"),
        get("/admin/projections"),
        get("/admin/deliveries", [("limit", _NEWEST_READ)]),
        get("/metrics"),
    )
    authors = [row for row in _rows(instances, "instances") if not row["built_in"]]
    # A wrong key of the console is a refused request without a source.
    shown = [row for row in _rows(newest, "rows") if row["source"]]
    samples = list(samples_of(metrics.answer.body.decode(errors="replace")) if metrics.ok else ())
    return context.render(
        "overview.html",
        "",
        # When not ready, it returns 503 with the unavailable parts, not a problem document.
        ready=ready.data["parts"],
        day=day,
        day_counts=_counts(_rows(day, "outcomes"), "status", "deliveries"),
        runs=runs,
        deliveries=deliveries,
        attention=attention_of([*_rows(runs, "groups"), *_rows(deliveries, "groups")]),
        seen=seen,
        instances=instances,
        instance_counts=_counts(authors, "status", "instances"),
        built_in=sum(row["instances"] for row in _rows(instances, "instances") if row["built_in"]),
        progress=progress,
        newest=newest,
        newest_rows=shown[:_NEWEST],
        since=since,
        glance=glance_of(samples) if samples else (),
        lags=furthest_behind(lags_of(samples)),
    )


async def failures(context: PageContext) -> Response[bytes]:
    """Failed runs by workflow and error, and failed deliveries by reason."""
    seen = context.query_value("since") or context.seen_until()
    runs, deliveries = await gather(
        context.api.get("/admin/instances/failures", [("since", seen)]),
        context.api.get("/admin/dlq/reasons", [("since", seen)]),
    )
    return context.render(
        "failures.html", "failures", response=runs, deliveries=deliveries, seen=seen
    )


def _rows(response: ApiResponse, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a response; none if it failed."""
    rows: Sequence[Mapping[str, Any]] = response.data[name] if response.ok else ()
    return rows


def _counts(rows: Iterable[Mapping[str, Any]], name: str, number: str) -> Counter[str]:
    """Add up the numbers of rows that have the same name."""
    counts = Counter[str]()
    for row in rows:
        counts[row[name]] += row[number]
    return counts
