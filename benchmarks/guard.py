"""`make bench-guard`: compare the speed of the working tree with that of a commit.

Both are measured in turn, in one run of some ten minutes: what else the machine does, and how warm
it is, changes from minute to minute and concerns both alike. Only the ratios count. CPU per unit of
work is steadier than a rate: it hardly depends on other processes.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import click
from typing_extensions import override

_ROOT: Final = Path(__file__).resolve().parents[1]
#: A change of more than this is reported as slower.
_TOLERANCE: Final = 0.05
_TURN_TIMEOUT_S: Final = 300.0

#: Figures of one turn: by measurement, `rate` and `cpu_us`.
Figures: TypeAlias = Mapping[str, Mapping[str, float]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("commit", default="HEAD")
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True)
def main(commit: str, rounds: int) -> None:
    """Compare the working tree with COMMIT (by default HEAD, that is without your changes)."""
    base: list[Figures] = []
    ours: list[Figures] = []
    with _checked_out(commit) as tree:
        for number in range(rounds):
            # In turn, and each of them first in every other round.
            for path, figures in ((tree, base), (_ROOT, ours))[:: 1 if number % 2 == 0 else -1]:
                figures.append(_turn(path))
                click.echo(f"round {number + 1}: {path.name} measured", err=True)
    rows = [(name, compare(name, base, ours)) for name in base[0]]
    click.echo(f"working tree compared with {commit}; ratios: median (lowest to highest)")
    for name, comparison in rows:
        click.echo(f"{name:24} {comparison}")
    if any(comparison.is_slower for _, comparison in rows):
        raise click.ClickException("slower; see the lines that say so")


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headwater-guard-") as directory:
        tree = Path(directory) / "base"
        git = ("git", "-C", str(_ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _turn(tree: Path) -> Figures:
    """Measure a tree. Its own sources come before those that are installed."""
    if not (tree / "benchmarks" / "guard_round.py").exists():
        raise click.ClickException("that commit is older than this measurement: choose a later one")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard_round"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree)))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_TURN_TIMEOUT_S,
    )
    if done.returncode:
        raise click.ClickException(f"the measurement of {tree.name} failed; see above")
    figures: Figures = json.loads(done.stdout)
    return figures


class Comparison:
    """Ratios of one measurement, round by round: rates and CPU per unit of work."""

    def __init__(self, rates: list[float], cpu: list[float], cpu_us: float) -> None:
        self._rates = rates
        self._cpu = cpu
        self._cpu_us = cpu_us

    @property
    def is_slower(self) -> bool:
        """Whether the CPU is higher by more than is tolerated.

        One dear round says nothing if the rate is not lower, too, and another round was cheaper.
        """
        is_dearer = median(self._cpu) > 1 + _TOLERANCE
        return is_dearer and (median(self._rates) < 1 - _TOLERANCE or min(self._cpu) > 1)

    @override
    def __str__(self) -> str:
        """Return the line of the report."""
        slower = "  SLOWER" if self.is_slower else ""
        cpu = f"CPU {_spread(self._cpu)}, {self._cpu_us:,.0f} us now"
        return f"rate {_spread(self._rates)}   {cpu}{slower}"


def compare(name: str, base: list[Figures], ours: list[Figures]) -> Comparison:
    """Compare the rounds of one measurement."""

    def ratios(value: str) -> list[float]:
        return [b[name][value] / a[name][value] for a, b in zip(base, ours, strict=True)]

    cpu_us = median(figures[name]["cpu_us"] for figures in ours)
    return Comparison(ratios("rate"), ratios("cpu_us"), cpu_us)


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.guard")
