"""Following what goes on by itself: how often it is looked at, and what is said of it."""

import pytest
from typing_extensions import override

from headwater.gateway.cli.orders import Operation, Order
from headwater.gateway.cli.output import counted, say_progress


class Counting(Order):
    pause_s = 0.0

    def __init__(self, *later: int) -> None:
        self.later = iter(map(at, later))

    @override
    def poll(self, state: Operation) -> Operation:
        return next(self.later)

    @override
    def progress(self, state: Operation) -> str:
        return f"{state['done']} of 3"


def at(number: int) -> Operation:
    return {"done": number, "state": "running" if number < 3 else "done"}


@pytest.mark.parametrize("quiet", [False, True])
def test_it_is_looked_at_until_nothing_is_under_way_and_each_change_is_said_once(
    capsys: pytest.CaptureFixture[str], quiet: bool
):
    order = Counting(1, 1, 2, 3)
    assert order.followed(at(0), quiet=quiet) == at(3)
    assert list(order.later) == []
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
    ended = at(3)
    assert Counting().followed(ended, quiet=True) is ended


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
