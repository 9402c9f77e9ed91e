"""Results: every round's numbers, their medians, and their ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, TypeVar

from typing_extensions import override

#: Target ratios of Headwater's figure to another's, by benchmark and comparison. Those not listed
#: have no aim. Aims are printed with the results and never make a run fail.
AIMS: Final[Mapping[tuple[str, str], float]] = {
    ("ingest", "bare"): 0.80,
    ("pipeline", "by hand"): 0.50,
    ("pipeline", "Quix Streams"): 1.50,
    ("pipeline", "Quix Streams, default"): 0.62,
    ("pipeline", "stock Faust"): 5.0,
    ("rebuild", "decode"): 0.50,
    ("workflows 1", "raw appends"): 0.50,
    ("workflows 50", "raw appends"): 0.32,
    ("workflows 500", "raw appends"): 0.40,
    # Flat: a step of a long workflow costs what one of a short workflow does.
    ("steps live", "10 steps"): 1.0,
    ("steps replay", "10 steps"): 1.0,
}

#: Upper limits of measures, by benchmark; like an aim, a limit never makes a run fail.
LIMITS: Final[Mapping[str, float]] = {"sleepers": 1_024}


T = TypeVar("T")


def turns(targets: Sequence[T], number: int) -> Sequence[T]:
    """Return the order of a round, rotated so that no target always follows the same one."""
    first = number % len(targets)
    return [*targets[first:], *targets[:first]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of one target.

    Attributes:
        values: Values by name; `others` is the number of cores that other processes kept busy.
        cpu_us: Processor microseconds per event, by process and in `all`.
    """

    values: dict[str, float]
    cpu_us: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A description of what was measured, and its rounds in order."""

    what: str
    rounds: list[Round] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Return the medians of the values over the rounds."""
        return _medians([measured.values for measured in self.rounds])

    def cpu_medians(self) -> dict[str, float]:
        """Return the median processor time per event, by process."""
        return _medians([measured.cpu_us for measured in self.rounds])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The subject's figure divided by another's: the median over the rounds, and their range.

    `cpu` is the subject's processor time per event divided by the other's. It hardly depends on
    what else the machine does, unlike the figures themselves.
    """

    to: str
    measured: float
    lowest: float
    highest: float
    cpu: float | None
    aim: float | None

    @override
    def __str__(self) -> str:
        aim = "no aim" if self.aim is None else f"aim {self.aim:.2f}"
        spread = f"{self.lowest:.2f} to {self.highest:.2f}"
        result = f"measured {self.measured:.2f} of {self.to} (rounds: {spread})"
        cpu = "" if self.cpu is None else f", at {self.cpu:.1f} times its processor time"
        return f"{aim}, {result}{cpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a benchmark.

    Attributes:
        name: Its name.
        title: Its title.
        measure: Name of the value that ratios compare.
        subject: Name of our target.
        targets: The targets by name.
    """

    name: str
    title: str
    measure: str
    subject: str
    targets: dict[str, Target]

    def ratios(self) -> list[Ratio]:
        """Return the subject's ratios to the other targets, round by round on the same machine."""
        ours = self._figures(self.subject)
        ratios = []
        for name in self.targets:
            if name != self.subject:
                by_round = [a / b for a, b in zip(ours, self._figures(name), strict=True)]
                ratios.append(
                    Ratio(
                        to=name,
                        measured=round(median(by_round), 3),
                        lowest=round(min(by_round), 3),
                        highest=round(max(by_round), 3),
                        cpu=self._cpu_ratio(name),
                        aim=AIMS.get((self.name, name)),
                    )
                )
        return ratios

    def _figures(self, name: str) -> list[float]:
        return [measured.values[self.measure] for measured in self.targets[name].rounds]

    def _cpu_ratio(self, name: str) -> float | None:
        ours, theirs = (
            self.targets[target].cpu_medians().get("all") for target in (self.subject, name)
        )
        return round(ours / theirs, 2) if ours and theirs else None

    def limit(self) -> str:
        """Return the limit and the measured value as text; "" if there is none."""
        if self.name not in LIMITS:
            return ""
        value = self.targets[self.subject].medians()[self.measure]
        return f"aim at most {LIMITS[self.name]:,.0f}, measured {value:,.0f}"

    def document(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "title": self.title,
            "measure": self.measure,
            "subject": self.subject,
            "targets": {
                name: {
                    "what": target.what,
                    "rounds": [
                        {**measured.values, "cpu_us": measured.cpu_us} for measured in target.rounds
                    ],
                    "median": {**target.medians(), "cpu_us": target.cpu_medians()},
                }
                for name, target in self.targets.items()
            },
            "ratios": [asdict(ratio) for ratio in self.ratios()],
            "limit": LIMITS.get(self.name),
        }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(median(values[name] for values in rounds), 3) for name in rounds[0]}
