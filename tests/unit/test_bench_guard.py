"""`make bench-guard`: what counts as slower."""

import pytest

from benchmarks.guard import Figures, compare


def rounds(rate: list[float], cpu_us: list[float]) -> list[Figures]:
    return [{"steps": {"rate": r, "cpu_us": c}} for r, c in zip(rate, cpu_us, strict=True)]


BASE = rounds([100, 200, 100], [50, 25, 50])


@pytest.mark.parametrize(
    ("rate", "cpu_us", "slower"),
    [
        ([100, 200, 100], [50, 25, 50], False),
        ([90, 180, 90], [60, 30, 60], True),
        # Another process took the machine: its CPU did not change.
        ([80, 160, 80], [50, 25, 50], False),
        # Dearer in every round, though as fast: the machine had a core to spare.
        ([100, 200, 100], [60, 30, 60], True),
        # Dearer in some rounds, and as fast.
        ([100, 200, 100], [60, 30, 49], False),
        # A single bad round.
        ([100, 100, 100], [50, 50, 50], False),
    ],
)
def test_slower_is_more_cpu(rate: list[float], cpu_us: list[float], slower: bool):
    assert compare("steps", BASE, rounds(rate, cpu_us)).is_slower is slower


def test_the_line_has_medians_and_their_range():
    line = str(compare("steps", BASE, rounds([90, 180, 120], [60, 30, 60])))
    assert line == "rate 0.90 (0.90 to 1.20)   CPU 1.20 (1.20 to 1.20), 60 us now  SLOWER"
