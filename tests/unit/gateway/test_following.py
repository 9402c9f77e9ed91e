"""Following what goes on by itself: how often it is looked at, and what is said of it."""

from typing import Any

import pytest

from headwater.gateway.cli.operations import followed
from headwater.gateway.cli.output import counted, say_progress


def states(*numbers: int) -> list[dict[str, Any]]:
    return [{"done": number} for number in numbers]


@pytest.mark.parametrize("quiet", [False, True])
def test_it_is_looked_at_until_nothing_is_under_way_and_each_change_is_said_once(
    capsys: pytest.CaptureFixture[str], quiet: bool
):
    later = iter(states(1, 1, 2, 3))
    result = followed(
        {"done": 0},
        poll=lambda _: next(later),
        is_running=lambda now: now["done"] < 3,
        progress=None if quiet else lambda now: f"{now['done']} of 3",
        pause_s=0,
    )
    assert result == {"done": 3}
    assert list(later) == []
    said = [] if quiet else ["0 of 3", "1 of 3", "2 of 3"]
    assert capsys.readouterr().err.splitlines() == said


def test_at_a_terminal_progress_replaces_the_progress_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    say_progress("1 of 3")
    say_progress("")
    assert capsys.readouterr().err == "\r\x1b[K1 of 3\r\x1b[K"


def test_what_has_ended_is_not_looked_at_again():
    ended = {"done": 3}
    result = followed(
        ended, poll=lambda _: pytest.fail("looked"), is_running=lambda _: False, progress=None
    )
    assert result is ended


@pytest.mark.parametrize(
    ("number", "noun", "plural", "words"),
    [
        (0, "row", "", "0 rows"),
        (1, "row", "", "1 row"),
        (1, "delivery", "deliveries", "1 delivery"),
        (2, "delivery", "deliveries", "2 deliveries"),
    ],
)
def test_a_number_of_things_is_said_as_people_say_it(
    number: int, noun: str, plural: str, words: str
):
    assert counted(number, noun, plural) == words
