"""What steps print where people look on: each line says whose it is."""

import io

from headwater.streams.authoring.attempt import ATTEMPT, CurrentAttempt
from headwater.streams.code_host.named_output import NamedLines


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
