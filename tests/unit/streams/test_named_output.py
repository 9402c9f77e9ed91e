"""What steps print where people look on: each line says whose it is."""

import io

from headwater.streams.code_host.named_output import LINE_MAX, UNFINISHED_MAX, NamedLines
from headwater.streams.replay.host_port import ATTEMPT, CurrentAttempt


def test_each_line_is_named_by_the_step_that_prints_it_and_waits_for_its_end():
    under = io.StringIO()
    lines = NamedLines(under, "shop.orders")
    print("loading", file=lines)
    token = ATTEMPT.set(CurrentAttempt("quote", 1, "order/o-1"))
    print("asking", end="", file=lines)
    other = ATTEMPT.set(CurrentAttempt("quote", 1, "order/o-2"))
    print("one\ntwo", file=lines)
    ATTEMPT.reset(other)
    print(" … found", file=lines)
    ATTEMPT.reset(token)
    assert under.getvalue().splitlines() == [
        "shop.orders | loading",
        "order/o-2 quote | one",
        "order/o-2 quote | two",
        "order/o-1 quote | asking … found",
    ]


def test_what_is_printed_without_the_end_of_a_line_is_not_kept_without_end():
    under = io.StringIO()
    lines = NamedLines(under, "shop.orders")
    for _ in range(3):
        print("x" * (LINE_MAX // 2 + 1), end="", file=lines)
    assert under.getvalue() == f"shop.orders | {'x' * 2 * (LINE_MAX // 2 + 1)}\n"
    for number in range(UNFINISHED_MAX):
        token = ATTEMPT.set(CurrentAttempt("quote", 1, f"order/o-{number}"))
        print(number, end="", file=lines)
        ATTEMPT.reset(token)
    assert under.getvalue().splitlines()[1:] == [f"shop.orders | {'x' * (LINE_MAX // 2 + 1)}"]
