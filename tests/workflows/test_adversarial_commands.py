"""Commands with adversarial values: each gets its outcome, and all else continues.

Every kind of command is sent to instances of every kind, with values at, within and beyond what
anything is made for. An instance that is there before has to end as if nothing had been sent.
"""

import asyncio
import dataclasses
from typing import Any, Final, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater import Concurrency, Step, WorkflowEvent, WorkflowTest, workflow
from headwater.schemas.codec import encode
from headwater.schemas.history import Command, CommandSent, Json, SendEvent, StartRun, instance_key
from headwater.streams.engine.quarantine import Incident
from tests.workflows.graphing import edge, graph, node, worker

_MANY: Final = 2_000
#: JSON texts, and texts that are none: deep, wide, large, odd.
TEXTS: Final = [
    "null", "1", "{}", "[]", '""', '"x"', "-0.0", "1e308", "1e400", "-1e400", "NaN", "Infinity",
    "9" * 400, "9" * 5_000, "1" + "0" * 4_299, "0." + "1" * 5_000, "1e-999999", "1E+999999999",
    "[" * 127 + "]" * 127, "[" * 128 + "]" * 128, "[" * 129 + "]" * 129, "[" * 100_000,
    '{"a":' * 128 + "1" + "}" * 128, '{"a":' * 20_000, "[" + "1e308," * _MANY + "1]",
    "[" + "[]," * _MANY + "[]]", "[" + "{}," * _MANY + "{}]", '{"a":1,"a":2}', '{"":{"":{}}}',
    '"\\ud800"', '{"\\udfff":"\\ud800"}', '"\\u0000"', '{"\\u0000":"\\u0000"}', '"\x00"', "\x00",
    '"\ufdd0\uffff"', '"' + "\u00e9" * 10_000 + '"', '"' + "x" * 1_048_574 + '"',
    '"' + "x" * 1_048_575 + '"', '{"customer":"\\ud800"}', '{"customer":' + "9" * 400 + "}",
    '{"customer":"' + "k" * 100_000 + '"}', '{"customer":' + "[" * 128 + "]" * 128 + "}",
    '{"skus":[' + "1," * _MANY + "1]}", '{"skus":["a"]}', '{"items":[1,2]}', '{"items":"no"}',
    '{"items":' + "[" * 128 + "]" * 128 + "}", '{"items":[' + "1," * 300 + "1]}", "", " ", "{", '"',
    "true false", "[1,]", "{'a':1}", "\ufeff1", "/*1*/", "1" * 100_000,
]  # fmt: skip
#: Names, ids and keys.
NAMES: Final = [
    "a", "i-0", "i-1", "", "-", "_", "A" * 100, "A" * 101, "x" * 50_000, "a/b", "a#1", "a b", "é",
    "\x00", "a\x00b", "~", "~rule", "headwater-schedule", "..", ".", "a\nb", "\u202e", "💥", "0",
    "#", "#1", "order/i-0#1", "x#-1", "x#x", "x#" + "9" * 400, "order/i-0#" + "9" * 30, "/", "//",
    "null", "order", "order/i-0", "order/i-0#0", "limited", "flow", "jobs", "slots", "code",
    "graph", "a.b.c", "%2F", "~3", "pages/~3/fetch",
]  # fmt: skip
NUMBERS: Final = [0, 1, 2, 3, -1, 60_000, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63)]
WORKFLOWS: Final = ("order", "limited", "flow", "jobs", "parent", "nothing-of-this-name")
IDS: Final = ("i-0", "i-1", "x" * 101, "x" * 50_000, "a/b", "")


@dataclasses.dataclass
class Order:
    """What a typed workflow takes."""

    skus: list[str]


@workflow("order")
async def order(event: WorkflowEvent[Order], step: Step) -> int:
    await step.wait_for_event("answer", type="a", timeout="1 hour")
    return len(event.payload.skus)


@workflow("limited", concurrency=Concurrency(1, key="params.customer"))
async def limited(event: WorkflowEvent, step: Step) -> Any:  # noqa: ANN401
    result = await step.wait_for_event("answer", type="a", timeout="1 hour")
    return [event.payload, result.payload]


@workflow("parent")
async def parent(event: WorkflowEvent, step: Step) -> Any:  # noqa: ANN401
    return await step.run_workflow("child", limited, params=event.payload)


FLOW: Final = graph(
    [
        node("start", outputMapping={"state.all": "input"}),
        node("work", "work", inputMapping={"item": "item"}, outputMapping={"output.n": "result.n"}),
        node("end"),
    ],
    [
        edge(
            "start",
            "work",
            siblingGroup="g",
            foreach={"collection": "input.items", "itemVar": "item"},
        ),
        edge(
            "work",
            "end",
            synchronization={
                "strategy": "all",
                "siblingGroup": "g",
                "merge": {
                    "source": "_branch.output.n",
                    "target": "state.n",
                    "strategy": "keyed_by_branch",
                },
            },
        ),
    ],
    name="flow",
    inputSchema={
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"anyOf": [{"type": "string"}, {"not": {"$ref": "#/$defs/b"}}]},
            "b": {"items": {"$ref": "#/$defs/b"}, "type": "boolean"},
        },
    },
    outputMapping={"all": "state.all"},
)
JOBS: Final = graph(
    [
        node(
            "a",
            "charge",
            external=True,
            inputMapping={"all": "input"},
            outputMapping={"state.r": "result"},
            retries={"limit": 1, "delay": "1 second"},
        ),
        node("b", inputMapping={"r": "state.r"}),
    ],
    [edge("a", "b")],
    name="jobs",
)


def _values(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401, PLR0911, one for each kind
    """Adversarial values of the type of a field."""
    if kind == Json:
        return st.sampled_from(NAMES)
    if kind is int:
        return st.sampled_from(NUMBERS)
    if kind is bool:
        return st.booleans()
    if kind is type(None):
        return st.none()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _structs(kind)
    members = get_args(kind)
    if members and members[-1] is Ellipsis:
        return st.lists(_values(members[0]), max_size=3).map(tuple)
    return st.one_of([_values(member) for member in members])


#: Fields of commands that hold JSON, which is a text like any other to Python.
_OF_JSON: Final = {"params", "payload", "start", "output", "detail"}


def _structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    fields = {}
    for field in msgspec.structs.fields(kind):
        of_json = field.name in _OF_JSON or (kind.__name__ == "AskSlot" and field.name == "key")
        result = st.sampled_from(TEXTS) if of_json else _values(field.type)
        if of_json and type(None) in get_args(field.type):
            result = st.one_of(st.none(), result)
        if not field.required:
            # Most often as it usually is: else little would get beyond the first check.
            result = st.one_of(st.just(field.default), st.just(field.default), result)
        fields[field.name] = result
    return st.builds(kind, **fields)


KINDS: Final = get_args(Command)
SENT: Final = st.tuples(
    st.sampled_from(WORKFLOWS),
    st.sampled_from(IDS),
    st.one_of([_structs(kind) for kind in KINDS]),
)


async def played(commands: list[tuple[str, str, Command]], seen: list[Incident]) -> None:
    known: list[WorkflowTest] = []
    workflows = [order, limited, parent, FLOW, JOBS]
    async with WorkflowTest(workflows, tasks=[worker(known, [])]) as test:
        known.append(test)
        contained = test._handle_incidents

        def noted(turn: Any) -> None:  # noqa: ANN401
            seen.extend(turn.incidents)
            contained(turn)

        test._handle_incidents = noted  # type: ignore[method-assign]
        other = await test.create("order", id="other", params={"skus": ["a", "b"]})
        for name, instance, command in commands:
            if _can_be_sent(name, instance, command):
                reply = await test.send(name, instance, command)
                assert len(reply.message) <= 20_000
        await test.run_until_idle()
        await other.send_event("a")
        await test.advance("2 hours")
        status = await other.status()
        assert (status.status, status.output) == ("complete", 2)
        await test.crash()
        await test.advance("1 day")
        assert test._owner.instances.quarantined == {}
        assert (await other.status()).output == 2


def _can_be_sent(name: str, instance: str, command: Command) -> bool:
    """Whether a record can hold it; the gateway and the outbox of workers send no other."""
    sent = CommandSent(
        command_id="c",
        workflow=name,
        instance_id=instance,
        sent_at_ms=0,
        reply_to=0,
        command=command,
    )
    try:
        return len(encode(sent)) < 11_000_000 and bool(instance_key(name, instance))
    except ValueError:
        return False


def check(commands: list[tuple[str, str, Command]]) -> None:
    seen: list[Incident] = []
    asyncio.run(played(commands, seen))
    assert seen == [], "no value has to be contained that a command may have"


@settings(max_examples=25)
@given(st.lists(SENT, min_size=1, max_size=8))
@example([("order", "i-0", StartRun('{"skus":[' + "1," * 500_000 + "1]}"))])
@example([("limited", "i-0", StartRun("null")), ("limited", "i-0", SendEvent("x#x", "a", "1"))])
def test_every_command_gets_its_outcome(commands: list[tuple[str, str, Command]]):
    check(commands)


@pytest.mark.parametrize("part", range(4))
def test_every_text_is_taken_or_refused_wherever_values_are(part: int):
    commands: list[tuple[str, str, Command]] = []
    for number, text in enumerate(TEXTS[part::4]):
        for name in WORKFLOWS[1:]:
            commands += [
                (name, f"i-{number}", StartRun(text)),
                (name, f"i-{number}", SendEvent(f"e-{number}", "a", text)),
                (name, f"j-{number}", SendEvent(f"f-{number}", "a", "1", start=text)),
            ]
    check(commands)


@pytest.mark.soak
@settings(max_examples=5_000)
@given(st.lists(SENT, min_size=1, max_size=25))
def test_a_long_campaign_of_adversarial_commands(commands: list[tuple[str, str, Command]]):
    check(commands)
