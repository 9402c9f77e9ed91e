"""Sleeps as parts of a day: which are versions of one, and which is the main one."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from headwater.schemas.tables import Part

_DAY_MS: Final = 24 * 60 * 60 * 1000


class Sleep(NamedTuple):
    """A sleep, as the id of its part has it: times in Unix milliseconds."""

    start_ms: int
    end_ms: int
    summary_id: str

    @property
    def part(self) -> str:
        """Return the id of its part."""
        return f"{self.start_ms}/{self.end_ms}/{self.summary_id}"

    @property
    def length_ms(self) -> int:
        """Return its time in bed."""
        return self.end_ms - self.start_ms

    def conflicts(self, other: "Sleep") -> bool:
        """Return whether this and another sleep are versions of one.

        They have the same id or start, or overlap by more than half of the shorter one. A record of
        more than a day is no single sleep, so what it overlaps is another.
        """
        if self.start_ms == other.start_ms or (
            self.summary_id and self.summary_id == other.summary_id
        ):
            return True
        shorter, longer = sorted((self.length_ms, other.length_ms))
        overlap = min(self.end_ms, other.end_ms) - max(self.start_ms, other.start_ms)
        return longer <= _DAY_MS and overlap * 2 > shorter


def sleep_of(part: str) -> Sleep:
    """Return the sleep of a part's id."""
    start, end, summary_id = part.split("/", 2)
    return Sleep(int(start), int(end), summary_id)


def main_of(parts: Mapping[str, Part]) -> str | None:
    """Return the part with the longest time asleep, else in bed, that is no nap nor replaced."""
    nights = [part for part, sleep in parts.items() if sleep.values and sleep.counts]
    return max(nights, key=lambda part: _preference(part, parts[part]), default=None)


def _preference(part: str, sleep: Part) -> tuple[float, tuple[int, int, int, str], str]:
    asleep = sleep.values.get("sleep_minutes")
    minutes = asleep if isinstance(asleep, float | int) else sleep_of(part).length_ms / 60_000
    return minutes, sleep.stamp.order, part
