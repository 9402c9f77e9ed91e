"""When a part that died is started again."""

import pytest

from headwater.gateway.local.processes import CrashHistory, RestartPolicy


def delays(lives: list[tuple[float, float]]) -> list[float]:
    """The delays after lives given as (started, died)."""
    deaths = CrashHistory(RestartPolicy())
    return [deaths.delay_after(started_at=started, crashed_at=died) for started, died in lives]


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        pytest.param([(0, 1)], [0.5], id="the first is quick"),
        pytest.param([(0, 20), (20, 40), (40, 60)], [0.5, 1, 2], id="each doubles the last"),
        pytest.param(
            [(t, t + 20) for t in range(0, 140, 20)],
            [0.5, 1, 2, 4, 8, 10, 10],
            id="up to the slowest",
        ),
        pytest.param(
            [(0, 1), (1, 2), (2, 32), (32, 33)],
            [0.5, 1, 0.5, 1],
            id="thirty seconds up forgive all",
        ),
        pytest.param(
            [(t, t + 1) for t in range(6)],
            [0.5, 1, 2, 4, 10, 10],
            id="five within a minute are the slowest at once",
        ),
    ],
)
def test_the_delay_after_each_death(lives: list[tuple[float, float]], expected: list[float]):
    assert delays(lives) == expected


def test_deaths_are_many_only_while_they_are_recent():
    deaths = CrashHistory(RestartPolicy())
    for second in range(5):
        assert not deaths.are_many_at(second)
        deaths.delay_after(started_at=second, crashed_at=second)
    assert deaths.are_many_at(4)
    assert deaths.are_many_at(60)
    assert not deaths.are_many_at(61)
