"""Places in the history: what an answer states, and what a reader asks to have applied.

Written as `workflow-history/3@123`: what lies at offset 123 of partition 3, and all before it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from headwater.gateway.http.problems import Problem
from headwater.schemas.topics import WORKFLOW_HISTORY

#: Partition to offset: what lies there is applied, or has to be.
Positions: TypeAlias = Mapping[int, int]

HEADER: Final = "headwater-position"
PARAMETER: Final = "min_position"

_POSITION: Final = re.compile(rf"{WORKFLOW_HISTORY}/(\d{{1,9}})@(\d{{1,18}})", re.ASCII)
#: Positions of one header: with more of them it would outgrow what proxies take.
_STATED_MAX: Final = 100
#: Positions that a reader may ask for; as many partitions as a topic may have here.
_WANTED_MAX: Final = 1_000


def format_positions(positions: Positions) -> str:
    """Positions as a header; empty when there are too many, or none."""
    if len(positions) > _STATED_MAX:
        return ""
    return ", ".join(
        f"{WORKFLOW_HISTORY}/{partition}@{offset}"
        for partition, offset in sorted(positions.items())
        if offset >= 0
    )


def read_positions(texts: Iterable[str]) -> dict[int, int]:
    """Reads positions, several of them separated by commas; of one partition the furthest counts.

    Errors: Problem.
    """
    wanted: dict[int, int] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        found = _POSITION.fullmatch(part)
        if found is None or len(wanted) >= _WANTED_MAX:
            raise Problem(
                "invalid_parameter",
                f"{PARAMETER}: expected at most {_WANTED_MAX} positions such as "
                f"{WORKFLOW_HISTORY}/3@123, separated by commas, found {part[:60]!r}",
                field=PARAMETER,
            )
        partition, offset = int(found[1]), int(found[2])
        wanted[partition] = max(offset, wanted.get(partition, -1))
    return wanted


def furthest(positions: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The furthest offset of each partition."""
    found: dict[int, int] = {}
    for partition, offset in positions:
        found[partition] = max(offset, found.get(partition, -1))
    return found
