"""What was measured: every round's numbers, their medians, and the ratios that they come to."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, TypeVar

from typing_extensions import override

#: The share of a comparison's figure that Headwater aims at, by benchmark and comparison. What is
#: not named has no aim. Aims are printed beside what was found and never make a run fail.
AIMS: Final[Mapping[tuple[str, str], float]] = {
    ("ingest", "bare"): 0.80,
    ("pipeline", "by hand"): 0.50,
    ("pipeline", "Quix Streams"): 0.70,
    ("pipeline", "stock Faust"): 5.0,
    ("rebuild", "decode"): 0.50,
    # A step costs at most three appends.
    ("workflows 1", "raw appends"): 0.33,
    ("workflows 50", "raw appends"): 0.35,
    ("workflows 500", "raw appends"): 0.35,
    # Flat: a step of a long workflow costs what one of a short workflow does.
    ("steps live", "10 steps"): 1.0,
    ("steps replay", "10 steps"): 1.0,
}

#: What a measure may be at most, by benchmark; as little a reason to fail as an aim.
LIMITS: Final[Mapping[str, float]] = {"sleepers": 1_024}


T = TypeVar("T")


def turns(targets: Sequence[T], number: int) -> Sequence[T]:
    """The order of a round: each begins with another target, so that none always follows one."""
    first = number % len(targets)
    return [*targets[first:], *targets[:first]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of one target.

    Shape:  `cpu_us` is processor time an event, by part and in `all`; the value `others` is the
            cores that were busy with something else meanwhile.
    """

    values: dict[str, float]
    cpu_us: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What was measured, and its rounds in order."""

    what: str
    rounds: list[Round] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """The median of each value over the rounds."""
        return _medians([taken.values for taken in self.rounds])

    def cpu_medians(self) -> dict[str, float]:
        """The median processor time an event, by part."""
        return _medians([taken.cpu_us for taken in self.rounds])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The subject's figure divided by another's: the median over the rounds, and their range.

    Shape:  `cpu` is the subject's processor time an event divided by the other's. It hardly
            depends on what else the machine does, where the figures themselves do.
    """

    to: str
    found: float
    lowest: float
    highest: float
    cpu: float | None
    aim: float | None

    @override
    def __str__(self) -> str:
        aim = "no aim" if self.aim is None else f"aim {self.aim:.2f}"
        spread = f"{self.lowest:.2f} to {self.highest:.2f}"
        found = f"found {self.found:.2f} of {self.to} (rounds: {spread})"
        cpu = "" if self.cpu is None else f", at {self.cpu:.1f} times its processor time"
        return f"{aim}, {found}{cpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A benchmark's outcome.

    Shape:  `measure` names the value that ratios are about; `subject` the target that is ours.
    """

    name: str
    title: str
    measure: str
    subject: str
    targets: dict[str, Target]

    def ratios(self) -> list[Ratio]:
        """The subject beside each other target, round by round: both had the machine as it was."""
        ours = self._figures(self.subject)
        ratios = []
        for name in self.targets:
            if name != self.subject:
                each = [a / b for a, b in zip(ours, self._figures(name), strict=True)]
                ratios.append(
                    Ratio(
                        to=name,
                        found=round(median(each), 3),
                        lowest=round(min(each), 3),
                        highest=round(max(each), 3),
                        cpu=self._cpu_ratio(name),
                        aim=AIMS.get((self.name, name)),
                    )
                )
        return ratios

    def _figures(self, name: str) -> list[float]:
        return [taken.values[self.measure] for taken in self.targets[name].rounds]

    def _cpu_ratio(self, name: str) -> float | None:
        ours, theirs = (
            self.targets[each].cpu_medians().get("all") for each in (self.subject, name)
        )
        return round(ours / theirs, 2) if ours and theirs else None

    def limit(self) -> str:
        """The limit and what was found, in words; empty where there is none."""
        if self.name not in LIMITS:
            return ""
        found = self.targets[self.subject].medians()[self.measure]
        return f"aim at most {LIMITS[self.name]:,.0f}, found {found:,.0f}"

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "title": self.title,
            "measure": self.measure,
            "subject": self.subject,
            "targets": {
                name: {
                    "what": target.what,
                    "rounds": [{**t.values, "cpu_us": t.cpu_us} for t in target.rounds],
                    "median": {**target.medians(), "cpu_us": target.cpu_medians()},
                }
                for name, target in self.targets.items()
            },
            "ratios": [asdict(ratio) for ratio in self.ratios()],
            "limit": LIMITS.get(self.name),
        }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(median(each[name] for each in rounds), 3) for name in rounds[0]}
