"""Positions in the history: stated by responses, and required by later reads.

Format: `workflow-history/3@123`, for all records of partition 3 up to offset 123.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from headwater.gateway.api.problems import Problem
from headwater.schemas.topics import WORKFLOW_HISTORY

#: Partition to the last offset that is applied, or required to be.
Positions: TypeAlias = Mapping[int, int]

HEADER: Final = "headwater-position"
PARAMETER: Final = "min_position"

_POSITION: Final = re.compile(rf"{WORKFLOW_HISTORY}/(\d{{1,9}})@(\d{{1,18}})", re.ASCII)
#: Most positions in a header; a longer one would exceed the limits of proxies.
_STATED_MAX: Final = 100
#: Most positions that a request may require: the most partitions of a topic.
_REQUIRED_MAX: Final = 1_000


def format_positions(positions: Positions) -> str:
    """Format positions as a header value; empty if there are too many, or none."""
    if len(positions) > _STATED_MAX:
        return ""
    return ", ".join(
        f"{WORKFLOW_HISTORY}/{partition}@{offset}"
        for partition, offset in sorted(positions.items())
        if offset >= 0
    )


def read_positions(texts: Iterable[str]) -> dict[int, int]:
    """Parse positions separated by commas; of one partition the furthest counts.

    Raises:
        Problem: A text is not a position, or there are too many.
    """
    required: dict[int, int] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        match = _POSITION.fullmatch(part)
        if match is None or len(required) >= _REQUIRED_MAX:
            raise Problem(
                "invalid_parameter",
                f"{PARAMETER}: expected at most {_REQUIRED_MAX} positions such as "
                f"{WORKFLOW_HISTORY}/3@123, separated by commas, found {part[:60]!r}",
                field=PARAMETER,
            )
        partition, offset = int(match[1]), int(match[2])
        required[partition] = max(offset, required.get(partition, -1))
    return required


def furthest(positions: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the furthest offset of each partition."""
    offsets: dict[int, int] = {}
    for partition, offset in positions:
        offsets[partition] = max(offset, offsets.get(partition, -1))
    return offsets
