"""What steps print where people look on: each line says whose it is."""

import io
import json
import os

from headwater.streams.code_host.named_output import (
    LINE_MAX,
    UNFINISHED_MAX,
    JsonPrinted,
    NamedLines,
)
from headwater.streams.log_lines import LogStyle
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


def test_in_json_a_printed_line_has_the_fields_of_its_step():
    under = io.StringIO()
    lines = JsonPrinted(under, "shop.orders", LogStyle(json=True, project="acme", process="shop"))
    print("loading", file=lines)
    token = ATTEMPT.set(CurrentAttempt("quote", 2, "order/o-1", 1))
    print('a "quoted"\nline', file=lines)
    ATTEMPT.reset(token)
    loading, *printed = map(json.loads, under.getvalue().splitlines())
    time = loading.pop("time")
    assert time.endswith("Z")
    of_all = {"level": "info", "logger": "shop.orders", "project": "acme", "process": "shop"}
    of_all["pid"] = os.getpid()
    assert loading == {**of_all, "message": "loading"}
    step = {"instance": "order/o-1", "run": 1, "step": "quote", "attempt": 2}
    assert [{**line, "time": time} for line in printed] == [
        {**of_all, **step, "time": time, "message": text} for text in ('a "quoted"', "line")
    ]
