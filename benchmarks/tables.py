"""Tables for people: a row per target, the rounds, the medians, and the ratios underneath."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.results import Comparison, Target
from benchmarks.size import Sized

#: Values shown after the measure, with their headings.
_SHOWN: Final = {
    "workflows_s": "workflows/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "answered_p50_ms": "answered p50 ms",
    "answered_p99_ms": "p99",
    "resumed_p50_ms": "resumed p50 ms",
    "resumed_p99_ms": "p99",
    "complete_p50_ms": "complete p50 ms",
    "complete_p99_ms": "p99",
    "busy": "generator's core",
    "worker_s": "worker's last batch s",
    "host_bytes_each": "of these the host's",
    "seconds": "seconds",
    "others": "others' cores",
}
_MEASURES: Final = {
    "events_s": "events/s",
    "requests_s": "requests/s",
    "histories_s": "histories/s",
    "steps_s": "steps/s",
    "creates_s": "creates/s",
    "answered_p50_ms": "ms to the answer",
    "bytes_each": "bytes each",
    "takeover_s": "seconds",
}


def show(results: Sequence[Comparison | Sized], machine: Mapping[str, Any]) -> None:
    """Print all results."""
    console = Console(highlight=False)
    console.print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, Kafka {machine['kafka']}, commit {machine['commit']}, "
        f"load before {machine['load_before']}"
    )
    for result in results:
        console.print()
        if isinstance(result, Sized):
            console.print(_sized(result))
        else:
            _show_comparison(console, result)


def _show_comparison(console: Console, comparison: Comparison) -> None:
    console.print(_table(comparison))
    for ratio in comparison.ratios():
        console.print(f"  {comparison.subject}: {ratio}")
    if comparison.limit():
        console.print(f"  {comparison.subject}: {comparison.limit()}")


def show_profile(top: Mapping[str, list[tuple[str, float]]]) -> None:
    """Print the functions with the most time of their own."""
    console = Console(highlight=False)
    for name, functions in top.items():
        table = Table(box=box.SIMPLE_HEAD, title=f"{name}: time in the function itself")
        table.add_column("share", justify="right")
        table.add_column("function", overflow="fold")
        for function, share in functions:
            table.add_row(f"{share:.1%}", Text(function))
        console.print(table)


def _table(comparison: Comparison) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title=comparison.title, title_justify="left", title_style="bold"
    )
    shown = [
        name
        for name in _SHOWN
        if any(name in target.rounds[0].values for target in comparison.targets.values())
    ]
    table.add_column("")
    table.add_column(f"median {_MEASURES[comparison.measure]}", justify="right")
    table.add_column("rounds", overflow="fold")
    for name in shown:
        table.add_column(_SHOWN[name], justify="right")
    table.add_column("CPU µs each", overflow="fold")
    for name, target in comparison.targets.items():
        table.add_row(name, *_cells(target, comparison.measure, shown))
    return table


def _sized(sized: Sized) -> Table:
    """Return a table of measured values and aims."""
    table = Table(box=box.SIMPLE_HEAD, title=sized.title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("")
    table.add_column("aim")
    for figure in sized.figures:
        table.add_row(figure.what, _shown(figure.measured), figure.unit, figure.aim)
    return table


def _cells(target: Target, measure: str, shown: list[str]) -> list[str]:
    medians, cpu = target.medians(), target.cpu_medians()
    return [
        _shown(medians[measure]),
        " ".join(_shown(measured.values[measure]) for measured in target.rounds),
        *(f"{medians[name]:.2f}" if name in medians else "" for name in shown),
        ", ".join(f"{part} {used:.0f}" for part, used in cpu.items()),
    ]


def _shown(value: float) -> str:
    """Return a figure with its significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
