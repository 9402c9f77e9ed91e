"""Arguments of another type than the author API takes are refused, and the message names it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headwater import Retry, Step, StepTx, WorkflowEvent, workflow
from tests.workflows.running import failure

ONCE = Retry(limit=0)


def numbers() -> Iterator[int]:
    """A generator."""
    yield 1


def branch(step: Step) -> int:
    """A branch that is not async."""
    return 5


async def body(step: Step, state: object) -> object:
    """A body that never ends by itself."""


def one(entry: Callable[[Step], Any]) -> Any:  # noqa: ANN401
    """A workflow of one entry."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return await entry(step)

    return order


Tx = Callable[[StepTx], object]

#: Calls of a transaction, with a part of the message.
NOTED: list[tuple[Tx, str]] = [
    (lambda tx: tx.execute("insert %s", "a"), "as a list or a tuple for %s"),
    (lambda tx: tx.execute("insert %s", b"a"), "found bytes"),
    (lambda tx: tx.execute("insert %s", bytearray(b"a")), "found bytearray"),
    (lambda tx: tx.execute("insert %s", {1, 2}), "found set"),
    (lambda tx: tx.execute("insert %s", frozenset({1})), "found frozenset"),
    (lambda tx: tx.execute("insert %s", numbers()), "found generator"),
    (lambda tx: tx.execute("insert %s", {"a": 1}.values()), "found dict_values"),
    (lambda tx: tx.execute("insert %s", 5), "found int"),
    (lambda tx: tx.execute("insert %s", None), "found NoneType"),
    (lambda tx: tx.execute("insert %s", {1: "a"}), "names of SQL parameters as text, found 1"),
    (lambda tx: tx.execute("insert %s", [object()]), "JSON, dates, Decimal or UUID, found object"),
    (lambda tx: tx.execute("insert %s", [{"a": {1}}]), "found set"),
    (lambda tx: tx.execute("insert %s", [b"a"]), "found bytes"),
    (lambda tx: tx.execute(5), "SQL as text, found int"),
    (lambda tx: tx.execute(b"select 1"), "SQL as text, found bytes"),
    (lambda tx: tx.publish(5, None, 1), "the name of a topic to be text, found int"),
    (lambda tx: tx.publish("t", 5, 1), "the key of a record to be text, found int"),
    (lambda tx: tx.create_workflow(5, id="a"), "a workflow made by @workflow"),
    (lambda tx: tx.create_workflow("ship", id="a", labels=["a"]), "labels as a dict, found"),
    (lambda tx: tx.create_workflow("ship", id="a", labels={1: "a"}), "names of labels as text"),
    (lambda tx: tx.send_event(None, "a", "word"), "a workflow made by @workflow"),
    (lambda tx: tx.cancelled("soon"), "seconds as a number, found 'soon'"),
]


@pytest.mark.parametrize(("noted", "told"), NOTED)
def test_a_wrong_argument_of_a_transaction_fails_the_step(noted: Tx, told: str):
    def save(tx: StepTx) -> None:
        noted(tx)

    error = failure(one(lambda step: step.do("save", save, retries=ONCE)))
    assert (error.name, told in error.message) == ("TypeError", True), error.message


#: Values that are of the right type, and yet cannot be.
IMPOSSIBLE: list[tuple[Tx, str]] = [
    (lambda tx: tx.execute("insert %s", ["a\0"]), "texts without NUL as SQL parameters"),
    (lambda tx: tx.execute("insert %s", {"name": "a\0"}), "texts without NUL as SQL parameters"),
    (lambda tx: tx.execute("insert %s", [float("nan")]), "finite numbers as SQL parameters"),
    (lambda tx: tx.execute("insert %s", [[1.0, float("inf")]]), "finite numbers as SQL"),
    (lambda tx: tx.execute("select 'a\0'"), "SQL without NUL"),
    (lambda tx: tx.create_workflow("ship", id=5), "expected an instance id"),
    (lambda tx: tx.send_event("ship", "a", 5), "expected an event type"),
]


@pytest.mark.parametrize(("noted", "told"), IMPOSSIBLE)
def test_a_value_that_cannot_be_fails_the_step(noted: Tx, told: str):
    def save(tx: StepTx) -> None:
        noted(tx)

    error = failure(one(lambda step: step.do("save", save, retries=ONCE)))
    assert (error.name, told in error.message) == ("ValueError", True), error.message


Entry = Callable[[Step], Any]

#: Calls of a step, with a part of the message.
ENTRIES: dict[str, tuple[Entry, str]] = {
    "a name": (lambda step: step.do(5, lambda: 1), "the name of an entry to be text"),
    "no function": (lambda step: step.do("a", 5), 'the step "a" to be passed a function'),
    "retries": (lambda step: step.do("a", lambda: 1, retries=3), "to be a Retry"),
    "a timeout": (lambda step: step.do("a", lambda: 1, timeout=[1]), 'the timeout of the step "a"'),
    "a rollback": (
        lambda step: _checkpointed(step, "undo"),
        'the rollback of the step "a" to be a function',
    ),
    "a sleep": (lambda step: step.sleep("a", [1]), 'the length of the sleep "a"'),
    "a sleep of None": (lambda step: step.sleep("a", None), 'the length of the sleep "a"'),
    "a moment": (lambda step: step.sleep_until("a", [1]), "a datetime or Unix milliseconds"),
    "a length as a moment": (
        lambda step: step.sleep_until("a", timedelta(1)),
        "a datetime or Unix milliseconds",
    ),
    "an event type": (lambda step: step.wait_for_event("a", type=5), "an event type"),
    "event types": (lambda step: step.wait_for_events("a", types="word"), "to be a list"),
    "a set of event types": (lambda step: step.wait_for_events("a", types={"a", "b"}), "a list"),
    "a wait": (lambda step: step.wait_for_event("a", type="b", timeout=[1]), 'the timeout of "a"'),
    "a child": (lambda step: step.run_workflow("a", 5), "a workflow made by @workflow"),
    "the id of a child": (lambda step: step.run_workflow("a", "b", id=5), "an instance id"),
    "the time of a child": (
        lambda step: step.run_workflow("a", "b", timeout=[1]),
        'the timeout of "a"',
    ),
    "a branch": (lambda step: step.join("a", b=5), "a join to have branches, each an async"),
    "a branch that is not async": (
        lambda step: step.join("a", b=branch),
        'the branch "b" to be an async function',
    ),
    "a branch of a race": (lambda step: step.race("a", b=5), "a race to have branches, each an"),
    "a body": (lambda step: step.loop("a", 5), 'the body of the loop "a"'),
    "a pace": (lambda step: step.loop("a", body, commit_interval="x"), "commit_interval"),
    "a kind": (lambda step: step.removed("a", kind=5), "kind to be one of"),
    "a list as a kind": (lambda step: step.removed("a", kind=["step"]), "kind to be one of"),
    "a checkpoint": (lambda step: step.checkpoint(5), "the name of an entry"),
    "a line": (lambda step: step.log.info(5), "text, found 5"),
    "a category": (lambda step: step.log.info("a", category=5), "text, found 'a' and 5"),
    "the name of a moment": (lambda step: step.now(5), "name"),
}


async def _checkpointed(step: Step, rollback: Any) -> None:  # noqa: ANN401
    await step.checkpoint("before")
    await step.do("a", lambda: 1, rollback=rollback)


@pytest.mark.parametrize("name", ENTRIES)
def test_a_wrong_argument_of_an_entry_fails_the_run(name: str):
    entry, reported = ENTRIES[name]
    error = failure(one(entry))
    assert error.name in {"TypeError", "ValueError", "JoinError"}, error
    assert reported in error.message, error.message
    assert "expected" in error.message
