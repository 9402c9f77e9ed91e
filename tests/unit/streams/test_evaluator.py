"""Evaluations that no bound admits are carried out by a process, within limits."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.processors.cel_programs import Names, ResultKind
from headwater.processors.evaluations import EvaluationProblem, Evaluations
from headwater.processors.expressions import COPIED_MAX, Expression, ExpressionValues
from headwater.processors.json_schemas import JsonSchema
from headwater.processors.task_runner import RESULT_MAX
from headwater.streams.evaluation.evaluator import EvaluationLimits, EvaluatorProcess

NAMES = Names("input", "state")
#: It is about what is limited; a machine under load may take long.
PATIENT = 60.0


@pytest.fixture(scope="module")
def evaluator() -> Iterator[EvaluatorProcess]:
    process = EvaluatorProcess(EvaluationLimits(wall_s=PATIENT))
    yield process
    process.close()


def evaluated(evaluator: EvaluatorProcess, source: str, **values: object) -> Any:  # noqa: ANN401
    expression = Expression(source, ResultKind.VALUE, NAMES)
    return expression.evaluate(ExpressionValues(values, NAMES), {}, Evaluations(evaluator))


def grown(times: int) -> str:
    return "'a'" + f".replace('a','{'a' * 1_000}')" * times


NUMBERS = list(range(100_000))


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("input.asked.all(x, !(x in input.known))", {"asked": NUMBERS, "known": [-1] * 100_000}),
        (
            "input.t.replace(input.old, input.new)",
            {"t": "x" * 300_000, "old": "x", "new": "y" * 300_000},
        ),
        ("+".join(["input.n"] * 25), {"n": NUMBERS}),
        (grown(3), {}),
        (grown(4), {}),
        ("input.t.split('').map(x, input.u).join('')", {"t": "x" * 2_000, "u": "x" * 50_000}),
        ("input.n.map(x, input.n)", {"n": NUMBERS[:2_000]}),
        ("input.t.contains(input.u)", {"t": "a" * 600_000, "u": "a" * 300_000 + "b"}),
        (
            "input.n.exists(x, input.t.matches(input.p))",
            {"n": NUMBERS[:9_000], "t": "x" * 99, "p": "(x?){900}x{900}"},
        ),
        ("input.l.map(x, '%.1000f%.1000f%.1000f'.format([x, x, x]))", {"l": [1e308] * 2_000}),
    ],
)
def test_what_takes_too_long_or_too_much_is_an_error_that_names_the_limit(
    evaluator: EvaluatorProcess, source: str, values: object
):
    fault = evaluated(evaluator, source, input=values)
    assert isinstance(fault, EvaluationProblem)
    assert not fault.missing
    assert any(limit in fault.message for limit in ("0.25 s", "256 MiB", f"{RESULT_MAX} bytes"))
    assert evaluated(evaluator, "size(input.map(x, x))", input=NUMBERS[:500]) == 500


def test_memory_is_limited_whatever_the_time():
    patient = EvaluatorProcess(EvaluationLimits(cpu_s=PATIENT, wall_s=PATIENT, memory_mib=64))
    try:
        for source in (grown(4), "+".join(["input"] * 25), "input.map(x, input)"):
            numbers = NUMBERS if "+" in source else NUMBERS[:COPIED_MAX]
            fault = evaluated(patient, source, input=numbers)
            assert isinstance(fault, EvaluationProblem)
            assert "64 MiB" in fault.message
    finally:
        patient.close()


@pytest.mark.parametrize(
    "source",
    [
        "input.a.filter(x, x.n in state.known).map(x, {'id': x.id, 'of': item.name})",
        "state.known.exists(x, x == item.n) ? input.t.replace('{{name}}', item.name) : ''",
        "input.t.split(' ').join('-') + string(size(state.known))",
        "[input.a[0].id, input.missing]",
        "[input, item]",
        "item.name + input.nul",
        "[1.5, 5.0, -0.0, null, true, 'ä', {'b': 1, 'a': [input.t]}]",
        "input.a.map(x, x.n / 0)",
        "dyn(input.t) < 5",
        "input.big",
        "[input.big]",
    ],
)
def test_a_process_gives_what_would_be_given_here(evaluator: EvaluatorProcess, source: str):
    values = {
        "input": {
            "a": [{"id": f"a{n}", "n": n, "p": n / 7} for n in range(50)],
            "t": "dear {{name}}, " * 20,
            "nul": "a\0b",
            "big": 2**70,
        },
        "state": {"known": list(range(0, 100, 3)), "pad": "x" * 100_000},
    }
    if "big" not in source:
        del values["input"]["big"]
    item = {"name": "Ünal\0", "n": 9}
    expression = Expression(source, ResultKind.VALUE, NAMES, ["item"])
    here = expression.evaluate(ExpressionValues(values, NAMES), {"item": item})
    there = expression.evaluate(
        ExpressionValues(values, NAMES), {"item": item}, Evaluations(evaluator)
    )
    assert there == here
    assert type(there) is type(here)


def test_all_evaluations_of_a_decision_are_limited_together(evaluator: EvaluatorProcess):
    expression = Expression(grown(4), ResultKind.VALUE, NAMES)
    evaluations, facts = Evaluations(evaluator), ExpressionValues({"input": 1}, NAMES)
    messages = [str(expression.evaluate(facts, {}, evaluations).message) for _ in range(20)]
    assert "an evaluation that takes at most" in messages[0]
    assert "all evaluations of one decision to take at most 1 s" in messages[-1]
    # What is cheap needs no process.
    cheap = Expression("input + 1", ResultKind.VALUE, NAMES)
    assert cheap.evaluate(facts, {}, evaluations) == 2


def test_a_schema_of_many_alternatives_is_checked_within_limits(evaluator: EvaluatorProcess):
    lines = {"type": "array", "items": {"type": "string"}}
    schema = JsonSchema({"anyOf": [{"properties": {"lines": lines}}, lines]})
    evaluations = Evaluations(evaluator)
    assert schema.problem({"lines": ["a"] * 300_000}, "params", evaluations) is None
    fault = schema.problem({"lines": [1] * 300_000}, "params", evaluations)
    assert fault is not None
    assert fault.startswith("params cannot be checked: expected an evaluation that takes at most")


def test_one_error_of_a_large_value_is_told(evaluator: EvaluatorProcess):
    schema = JsonSchema({"properties": {"skus": {"type": "array", "items": {"type": "string"}}}})
    fault = schema.problem({"skus": [1] * 520_000}, "params", Evaluations(evaluator))
    assert fault == 'params.skus[0]: 1 is not of type "string"; others may follow'


def test_a_process_that_is_killed_is_replaced(evaluator: EvaluatorProcess):
    assert evaluated(evaluator, "size(input.map(x, x))", input=NUMBERS[:500]) == 500
    process = evaluator._process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    assert evaluated(evaluator, "size(input.map(x, x))", input=NUMBERS[:600]) == 600


def test_a_process_that_does_not_answer_is_replaced():
    hasty = EvaluatorProcess(EvaluationLimits(wall_s=2.0))
    try:
        assert evaluated(hasty, "size(input.map(x, x))", input=NUMBERS[:500]) == 500
        process = hasty._process
        assert process is not None
        os.killpg(process.pid, signal.SIGSTOP)
        fault = evaluated(hasty, "size(input.map(x, x))", input=NUMBERS[:500])
        assert isinstance(fault, EvaluationProblem)
        assert evaluated(hasty, "size(input.map(x, x))", input=NUMBERS[:600]) == 600
    finally:
        hasty.close()


def test_its_process_ends_with_its_parent():
    own = EvaluatorProcess()
    own.start()
    process = own._process
    assert process is not None
    # What a parent that has died leaves behind: the end of the input.
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENT) == 0
    own.close()
