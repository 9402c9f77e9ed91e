"""Steps, children, retries and records are of the trace of their run."""

from headwater import (
    NonRetryableError,
    Step,
    StepTx,
    TaskInfo,
    WorkflowEvent,
    WorkflowTest,
    task,
    workflow,
)
from headwater.processors.runs import decide
from headwater.processors.runs.decisions import Facts
from headwater.processors.trace_context import (
    TraceContext,
    attempt_context,
    context_of,
    current_context,
)
from headwater.schemas.history import RunStarted, SendEvent, StartRun
from headwater.streams.harness.handles import TestInstance as Instance
from tests.workflows.graphing import edge, graph, node, play
from tests.workflows.running import Flaky, begin, run


def traced(text: object) -> TraceContext:
    assert isinstance(text, str)
    context = context_of(text)
    assert context is not None
    return context


@workflow("child")
async def child(event: WorkflowEvent, step: Step) -> object:
    return step.traceparent


@workflow("order")
async def order(event: WorkflowEvent, step: Step) -> object:
    flaky = Flaky(1)

    def within(tx: StepTx) -> object:
        flaky()
        tx.publish("orders", "a", 1)
        current = current_context()
        return [step.traceparent, current and current.traceparent]

    return {
        "run": step.traceparent,
        "attempt": await step.do("pay", within),
        "child": await step.run_workflow("call", "child"),
    }


def test_steps_children_and_records_are_of_the_trace_of_their_run():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await test.advance("1 hour")
        output = (await instance.status()).output
        assert isinstance(output, dict)
        own = traced(output["run"])
        expected = attempt_context(own, "pay", 2).traceparent
        assert output["attempt"] == [expected, expected]
        called = traced(output["child"])
        assert called.trace_id == own.trace_id
        assert called.span_id != own.span_id

    run(scenario, order, child)


def test_a_run_continues_the_trace_of_its_command_and_so_does_its_retry():
    sender = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
    facts = Facts("order", "o-1", 0, 0, "seed", trace=sender.text)
    for command in (StartRun("null"), SendEvent("e-1", "paid", "null", start="null")):
        decision = decide.begin(None, command, facts, "code")
        assert isinstance(decision, list)
        assert isinstance(decision[0], RunStarted)
        assert decision[0].trace == sender.text


def test_a_retry_stays_in_the_trace_of_its_run_and_a_restart_begins_another():
    broken, seen = Flaky(1, error=NonRetryableError), []

    @workflow("order")
    async def failing(event: WorkflowEvent, step: Step) -> object:
        seen.append(step.traceparent)
        return await step.do("pay", broken)

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        await instance.retry()
        await test.run_until_idle()
        await instance.restart()
        await test.run_until_idle()

    run(scenario, failing)
    first, retried, restarted = (traced(text) for text in dict.fromkeys(seen))
    assert first.trace_id == retried.trace_id != restarted.trace_id
    assert first.span_id != retried.span_id


def test_a_task_of_a_graph_has_the_context_of_its_attempt():
    seen: list[tuple[str, str | None]] = []

    @task("look")
    async def look(_: object, info: TaskInfo) -> dict[str, object]:
        current = current_context()
        seen.append((info.traceparent, current and current.traceparent))
        return {}

    async def scenario(test: WorkflowTest, _: Instance) -> None:
        await test.run_until_idle()

    play(
        graph([node("first", "look"), node("second", "look")], [edge("first", "second")]),
        scenario,
        tasks=[look],
    )
    (first, also_first), (second, _) = seen
    assert first == also_first
    assert traced(first).trace_id == traced(second).trace_id
    assert traced(first).span_id != traced(second).span_id
