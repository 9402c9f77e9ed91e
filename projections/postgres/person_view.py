"""The view daily_summary_by_person: one row per person and day, of all sources together.

Its migration contains the output of `python -m headwater.projections.postgres.person_view`.
"""

import sys
from collections.abc import Callable
from typing import Final

from headwater.projections.postgres.table_ddl import column_docs, quoted
from headwater.schemas.tables import DAILY_SUMMARY

NAME: Final = "daily_summary_by_person"
FUNCTION: Final = f"{NAME}_with"
#: Columns that only make sense together, of the source that has the first of them.
_NIGHT: Final = (
    "bed_time",
    "wake_up_time",
    "sleep_minutes",
    "deep_sleep_minutes",
    "rem_sleep_minutes",
    "light_sleep_minutes",
    "awake_minutes",
    "deep_sleep_percent",
    "rem_sleep_percent",
    "light_sleep_percent",
    "awake_percent",
    "spo2",
    "respiratory_rate",
    "skin_temperature",
)
_ACTIVITY: Final = (
    "active_zone_minutes",
    "fatburn_active_zone_minutes",
    "cardio_active_zone_minutes",
    "peak_active_zone_minutes",
)
#: Columns of a night that a day may have, too.
_BY_NIGHT_SOURCE: Final = (
    "resting_heart_rate",
    "heart_rate_variability",
    "recovery_score",
    "sleep_score",
)
_OFFSET: Final = "utc_offset_minutes"
#: Sources of the view, first choice first; the others follow by name.
_DAY_SOURCES: Final = ("garmin", "fitbit", "polar", "oura", "whoop")
_NIGHT_SOURCES: Final = ("oura", "whoop", "garmin", "fitbit", "polar")
_DAY, _SLEEP = "day_rank, source", "night_rank, source"
_SOURCES: Final = "sources"
#: Whether another source has the day of `d`.
_ANOTHER: Final = (
    f"exists (select from {DAILY_SUMMARY.name} o where o.user_id = d.user_id"
    " and o.datetime = d.datetime and o.source <> d.source)"
)


def definition() -> str:
    """Return the statements that create the function and the view.

    Most days have one source, whose row is returned as it is: the aggregates sort each day for each
    column, which takes ten times as long.
    """
    names = DAILY_SUMMARY.column_names
    types = {column.name: column.sql for column in DAILY_SUMMARY.columns}
    columns = ",\n        ".join(f"{name} {types[name]}" for name in names)
    only = ",\n        ".join(_only_value(name) for name in names)
    values = ",\n        ".join(_value(name) for name in names)
    lists = ", ".join(
        f"array[{', '.join(map(quoted, sources))}]" for sources in (_DAY_SOURCES, _NIGHT_SOURCES)
    )
    return (
        f"create function {FUNCTION}(day_sources text[], night_sources text[])\n"  # noqa: S608 (declared names)
        f"    returns table (\n        user_id text,\n        datetime date,\n        {columns},\n"
        f"        {_SOURCES} jsonb\n    )\n    language sql stable\nbegin atomic\n"
        "    select\n        d.user_id,\n        d.datetime,\n"
        f"        {only},\n        {_sources(_only)}\n"
        f"    from {DAILY_SUMMARY.name} d\n    where not {_ANOTHER}\n"
        "    union all\n"
        "    select\n        d.user_id,\n        d.datetime,\n"
        f"        {values},\n        {_sources(_first)}\n"
        "    from (\n        select *,\n"
        "            coalesce(array_position(day_sources, d.source), 1000) as day_rank,\n"
        "            coalesce(array_position(night_sources, d.source), 1000) as night_rank\n"
        f"        from {DAILY_SUMMARY.name} d\n        where {_ANOTHER}\n    ) as d\n"
        "    group by d.user_id, d.datetime;\nend;\n\n"
        f"create view {NAME} as\nselect *\nfrom {FUNCTION}({lists});\n"
    )


def person_view_ddl() -> str:
    """Return the statements that create the view and comment on its columns."""
    docs = column_docs(DAILY_SUMMARY)
    described = {
        "user_id": docs["user_id"],
        "datetime": docs["datetime"],
        **{name: docs[name] for name in DAILY_SUMMARY.column_names},
        _SOURCES: "Source of every column that is not null: {column: source}. The columns of the "
        "night are under night, the minutes of all zones under active_zone_minutes.",
    }
    comments = "\n".join(
        f"comment on column {NAME}.{name} is {quoted(doc)};" for name, doc in described.items()
    )
    return (
        f"{definition()}\n"
        f"comment on function {FUNCTION}(text[], text[]) is\n    'As the view {NAME}, with other "
        "sources first: of days, and of nights. Sources that are not listed follow by name.';\n"
        f"comment on view {NAME} is\n    {quoted(_comment())};\n{comments}\n"
    )


def _comment() -> str:
    return (
        "A person's day, of all wearables together. All columns of the night are of one source, "  # noqa: S608 (a text)
        "and so are the minutes in zones; every other column is of the first source that has it. "
        f"The order of sources is {', '.join(_DAY_SOURCES)}, then by name; for the night, resting "
        f"heart rate, variability, recovery and sleep score {', '.join(_NIGHT_SOURCES)}, then by "
        f"name. For another order: select * from {FUNCTION}(array['fitbit'], array['oura'])."
    )


def _sources(chosen: Callable[[str, str, str], str]) -> str:
    """Return the object with the source of every column."""
    sources = ",\n            ".join(
        f"'{name}', {chosen('source', *_rule(name))}"
        for name in DAILY_SUMMARY.column_names
        if name not in (*_NIGHT[1:], *_ACTIVITY[1:], _OFFSET)
    ).replace(f"'{_NIGHT[0]}'", "'night'")
    return f"jsonb_strip_nulls(jsonb_build_object(\n            {sources}\n        ))"


def _rule(name: str) -> tuple[str, str]:
    """Return the column that a source must have, to set this one, and the order of sources."""
    if name in _NIGHT:
        return _NIGHT[0], _SLEEP
    if name in _ACTIVITY:
        return _ACTIVITY[0], _DAY
    return name, _SLEEP if name in _BY_NIGHT_SOURCE else _DAY


def _value(name: str) -> str:
    if name == _OFFSET:
        # Local times of the night need the offset of its source.
        return f"coalesce({_first(name, _NIGHT[0], _SLEEP)}, {_first(name, name, _DAY)})"
    return _first(name, *_rule(name))


def _only_value(name: str) -> str:
    return name if name == _OFFSET else _only(name, *_rule(name))


def _only(name: str, needed: str, order: str) -> str:
    """Return a column of the only source of a day."""
    del order
    return name if name == needed else f"case when {needed} is not null then {name} end"


def _first(name: str, needed: str, order: str) -> str:
    return f"(array_agg({name} order by {order}) filter (where {needed} is not null))[1]"


if __name__ == "__main__":
    sys.stdout.write(person_view_ddl())
