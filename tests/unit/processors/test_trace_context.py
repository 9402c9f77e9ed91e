"""W3C Trace Context: which headers are valid, and which ids follow from the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.trace_context import (
    CURRENT,
    TraceContext,
    attempt_context,
    context_of,
    context_of_headers,
    current_context,
    delivery_context,
    run_context,
    span_id_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
EVENT = "5f1d7a84b2c9e03f6a1b8d7c4e2f9a60"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (PARENT, 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 3),  # undefined flags are not propagated
        (f" {PARENT}\t", 1),
        (f"cc-{TRACE}-{SPAN}-01", 1),  # a later version, read as version 00
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
    ],
)
def test_a_valid_parent_is_continued_in_version_00(text: str, flags: int):
    assert context_of_headers([text]) == TraceContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"00-{TRACE}-{SPAN}-01.",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0A",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
        "\u0660\u0660" + PARENT[2:],
    ],
)
def test_an_invalid_parent_is_ignored(text: str):
    assert context_of_headers([text], ["a=1"]) is None


def test_none_and_several_parents_are_no_parent():
    assert context_of_headers([]) is None
    assert context_of_headers([PARENT, PARENT]) is None


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (["rojo=00f067aa0ba902b7"], "rojo=00f067aa0ba902b7"),
        (["a=1,b=2", "c=3"], "a=1,b=2,c=3"),
        ([" a=1 ,\t, b=2 "], "a=1,b=2"),
        (["fw529a3039@dt=FfeF", "0a=x"], "fw529a3039@dt=FfeF,0a=x"),
        (["a=1,a=2"], ""),
        (["A=1"], ""),
        (["a=1,b"], ""),
        (["a=1,b="], ""),
        (["a=1=2"], ""),
        (["a=ü"], ""),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
        ([",".join(f"k{n}=1" for n in range(33))], ""),
        (["a=" + "x" * 257], ""),
        (["a=1", "," * 40_000], ""),
    ],
)
def test_a_state_is_propagated_if_it_is_valid_as_a_whole(values: list[str], state: str):
    assert context_of_headers([PARENT], values) == TraceContext(TRACE, SPAN, 1, state)


def test_of_a_long_state_the_longest_members_go_first_and_then_the_last():
    long = "long=" + "x" * 200
    short = [f"k{n:02}=" + "x" * 26 for n in range(20)]
    context = context_of_headers([PARENT], [",".join([short[0], long, *short[1:]])])
    assert context is not None
    assert context.state == ",".join(short[:16])
    assert len(context.state) <= 512


@given(st.text(max_size=300), st.lists(st.text(max_size=100), max_size=4))
def test_no_text_is_an_error(parent: str, states: list[str]):
    assert context_of_headers([parent], states) is None or len(parent.strip()) >= 55
    context = context_of_headers([PARENT], states)
    assert context is not None
    assert context_of(context.text) == context


def test_a_context_is_a_text_in_records_and_headers_in_requests():
    context = TraceContext(TRACE, SPAN, 1, "a=1,b=2")
    assert context.text == f"{PARENT} a=1,b=2"
    assert context_of(context.text) == context
    assert context.headers() == [("traceparent", PARENT), ("tracestate", "a=1,b=2")]
    assert TraceContext(TRACE, SPAN).headers() == [("traceparent", f"00-{TRACE}-{SPAN}-00")]
    assert context_of("") is None


def test_a_delivery_continues_the_trace_of_its_sender_or_is_one():
    assert delivery_context(EVENT, "") == TraceContext(EVENT, EVENT[:16])
    assert delivery_context(EVENT, f"{PARENT} a=1") == TraceContext(TRACE, EVENT[:16], 1, "a=1")
    assert delivery_context(EVENT, "nonsense") == TraceContext(EVENT, EVENT[:16])


def test_runs_and_attempts_have_ids_that_follow_from_what_they_are():
    first = run_context("order", "o-1", 0, "seed", "")
    retried = run_context("order", "o-1", 1, "seed", "")
    restarted = run_context("order", "o-1", 2, "other", "")
    assert first == run_context("order", "o-1", 0, "seed", "")
    assert first.trace_id == retried.trace_id != restarted.trace_id
    assert len({first.span_id, retried.span_id, restarted.span_id}) == 3
    caused = run_context("order", "o-1", 0, "seed", PARENT)
    assert (caused.trace_id, caused.span_id, caused.flags) == (TRACE, first.span_id, 1)
    attempts = [attempt_context(caused, "pay", number) for number in (1, 2)]
    assert {attempt.trace_id for attempt in attempts} == {TRACE}
    assert len({caused.span_id, *(attempt.span_id for attempt in attempts)}) == 3
    assert context_of(attempts[0].text) == attempts[0]


def test_parts_of_a_digest_are_not_confused():
    assert span_id_of("a", "bc") != span_id_of("ab", "c")
    assert len(span_id_of("\udcff")) == 16


def test_the_current_context_is_computed_when_it_is_needed():
    assert current_context() is None
    token = CURRENT.set(lambda: TraceContext(TRACE, SPAN))
    assert current_context() == TraceContext(TRACE, SPAN)
    CURRENT.reset(token)
