"""Lines of the log: their fields in JSON and for people."""

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Mapping

import pytest

from headwater.processors.log_fields import log_fields, set_log_fields
from headwater.streams import log_lines
from headwater.streams.log_lines import (
    CollectFields,
    HumanLines,
    JsonLines,
    LogStyle,
    inherited_style,
    json_line,
    variables_for_host,
)

STYLE = LogStyle(json=True, project="acme", process="gateway-2", host="node-7")
CONSTANT = {"project": "acme", "process": "gateway-2", "host": "node-7", "pid": os.getpid()}


def record(
    message: str = "a line", *, extra: Mapping[str, object] | None = None, failed: bool = False
) -> logging.LogRecord:
    """Return a record as a handler formats it."""
    made = logging.getLogger("headwater.test").makeRecord(
        "headwater.test",
        logging.WARNING,
        __file__,
        1,
        message,
        (),
        sys.exc_info() if failed else None,
        extra=extra,
    )
    made.created = 1_790_000_000.0456
    assert CollectFields().filter(made)
    return made


def test_a_line_is_an_object_with_the_fields_that_are_known():
    with log_fields(partition=3, request_id="r-1"):
        line = JsonLines(STYLE).format(record(extra={"event_id": "e1", "request_id": "r-2"}))
    assert json.loads(line) == {
        "time": "2026-09-21T14:13:20.045Z",
        "level": "warning",
        "logger": "headwater.test",
        "message": "a line",
        **CONSTANT,
        "request_id": "r-2",
        "event_id": "e1",
        "partition": 3,
    }
    assert json.loads(JsonLines(LogStyle(json=True)).format(record())).keys() == {
        *("time", "level", "logger", "message", "pid")
    }


def test_an_exception_is_an_object_and_the_line_stays_one_line():
    try:
        int("two\nlines")
    except ValueError:
        line = JsonLines(STYLE).format(record("it\nfailed", failed=True))
    assert "\n" not in line
    exception = json.loads(line)["exception"]
    assert exception["type"] == "ValueError"
    assert exception["message"].startswith("invalid literal")
    assert exception["stacktrace"].startswith("Traceback (most recent call last):\n")


def test_a_line_for_people_ends_with_its_fields():
    made = record(extra={"instance": "order/o-1", "run": 0})
    assert HumanLines("gateway-2 | ").format(made) == (
        "gateway-2 | 2026-09-21T14:13:20.045Z WARNING headwater.test: a line "
        "[instance=order/o-1 run=0]"
    )
    assert HumanLines().format(record()).endswith(" headwater.test: a line")
    try:
        {}["id"]
    except KeyError:
        text = HumanLines().format(record(failed=True, extra={"attempt": 2}))
    first, *_, last = text.splitlines()
    assert (first[-11:], last) == ("[attempt=2]", "KeyError: 'id'")


def test_tasks_do_not_see_the_fields_of_others():
    async def request(name: str) -> object:
        set_log_fields(request_id=name)
        await asyncio.sleep(0)
        return json.loads(JsonLines(STYLE).format(record()))["request_id"]

    async def both() -> list[object]:
        return await asyncio.gather(request("a"), request("b"))

    assert asyncio.run(both()) == ["a", "b"]
    assert "request_id" not in JsonLines(STYLE).format(record())


def test_any_text_and_any_object_can_be_written():
    line = JsonLines(STYLE).format(record("\udcff", extra={"instance": object}))
    assert json.loads(line)["message"] == "\udcff"
    assert json.loads(json_line(STYLE, {"message": "\0"})) == {"message": "\0", **CONSTANT}


def test_a_host_learns_the_style_and_authors_code_does_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(log_lines, "_style", LogStyle(project="acme", process="workflows"))
    assert variables_for_host("shop", names_steps=False) == {}
    named = variables_for_host("shop", names_steps=True)
    monkeypatch.setattr(log_lines, "_style", STYLE)
    for variables, style in (
        (named, LogStyle(names_steps=True, project="acme", process="shop")),
        (
            variables_for_host("shop", names_steps=False),
            LogStyle(json=True, project="acme", process="shop", host="node-7"),
        ),
    ):
        ((name, value),) = variables.items()
        monkeypatch.setenv(name, value)
        assert inherited_style() == style
        assert name not in os.environ
        assert inherited_style() == LogStyle()


def test_times_have_a_zone():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", log_lines.utc_text(0.0))
