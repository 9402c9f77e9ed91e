"""Files of histories: values of authors are known, and records are read as they were written."""

import ast
import json
from pathlib import Path

import msgspec
import pytest

from headwater.processors.runs.history_files import (
    PAYLOADS,
    HistoryFileInvalid,
    RunHistory,
    lines_of,
    read_history,
)
from headwater.processors.runs.redaction import REDACTED_FIELDS, Redaction, patterns_of
from headwater.schemas import history as schemas
from headwater.schemas.history import (
    EventReceived,
    HistoryAppended,
    LogWritten,
    Post,
    PostsQueued,
    RunStarted,
    StartRun,
    StepCompleted,
    StepFailed,
)
from headwater.schemas.history import Failure as Failed
from headwater.schemas.statuses import RunStatus


def history(*events: object) -> RunHistory:
    record = HistoryAppended(
        workflow="order",
        instance_id="o-1",
        run_number=0,
        sequence=0,
        epoch=3,
        cause=7,
        at_ms=1_000,
        events=events,  # type: ignore[arg-type]
    )
    return RunHistory(
        workflow="order",
        instance_id="o-1",
        run_number=0,
        status=RunStatus.WAITING,
        records=(record,),
    )


def step(result: str, key: str = "quote") -> StepCompleted:
    return StepCompleted(key, key, 0, 1, 1, 1, 1, result)


def test_fields_of_json_are_known():
    annotated = {
        (declared.name, field.target.id)
        for module in Path(schemas.__file__).parent.glob("*.py")
        for declared in ast.walk(ast.parse(module.read_text()))
        if isinstance(declared, ast.ClassDef)
        for field in declared.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and "Json" in ast.unparse(field.annotation)
    }
    assert {(kind.__name__, field) for kind, field in PAYLOADS} == annotated


@pytest.mark.parametrize(
    "text", ['{"a":1}', '{ "a": 1 }', "1.0", "1e0", "null", '"é"', '"\\u00e9"', "[1,1]", "not JSON"]
)
def test_values_of_authors_are_read_as_they_were(text: str):
    written = history(RunStarted(text, "seed"), step(text))
    assert read_history(lines_of(written)) == written


def test_a_history_is_readable():
    lines = list(lines_of(history(step('{"price": 3}'), step('{"price":3}', "again"))))
    assert '"workflow":"order","instanceId":"o-1","runNumber":0,"status":"waiting"' in lines[0]
    assert '{"_":"StepCompleted","key":"again","name":"again"' in lines[1]
    assert '"result":{"price":3}}' in lines[1]


@pytest.mark.parametrize(
    "lines", [[], ["{}"], ["no JSON"], ['{"format":9}'], ["[]"], ['{"format":1}']]
)
def test_what_is_no_history_is_refused(lines: list[str]):
    with pytest.raises(HistoryFileInvalid):
        read_history(lines)


def test_an_event_of_a_newer_release_is_refused():
    lines = [line.replace("StepCompleted", "StepImagined") for line in lines_of(history(step("1")))]
    with pytest.raises(HistoryFileInvalid, match="StepImagined"):
        read_history(lines)


# -- redaction


def redacted(*events: object, rules: str = REDACTED_FIELDS) -> tuple[str, int]:
    result = Redaction(patterns_of(rules), "salt").redact(history(*events))
    return "\n".join(lines_of(result)), result.redacted


def test_a_sensitive_text_is_replaced_wherever_it_occurs():
    command = StartRun('{"to":"ann@example.org"}')
    text, count = redacted(
        RunStarted('{"Email":"ann@example.org","sku":"x"}', "seed"),
        step('{"recipient":"ann@example.org"}'),
        step('"mailed ann@example.org"', "mail"),
        StepFailed("pay", "pay", 0, 1, 1, 1, 1, Failed("Error", "no card of ann@example.org")),
        EventReceived("e", "go", '["ann@example.org"]', 1),
        PostsQueued((Post(1, workflow="mail", instance_id="m", command=command),)),
        LogWritten("info", "app", "ann@example.org has paid", '{"password":"x"}'),
    )
    assert "ann@example.org" not in text
    assert '"sku":"x"' in text
    assert count == 6


def test_equal_texts_have_equal_pseudonyms_and_numbers_become_0():
    text, _ = redacted(
        step('{"email":"a@b.cd","phone":{"home":123456,"old":[true,null]}}'),
        step('{"email":"a@b.cd"}', "again"),
    )
    (line,) = text.splitlines()[1:]
    pseudonyms = {part.split('"')[0] for part in line.split('"email":"')[1:]}
    assert len(pseudonyms) == 1
    assert '"phone":{"home":0,"old":[true,null]}' in line


def test_json_within_texts_is_redacted_like_any_other():
    inner = json.dumps({"email": "ann@b.cd", "phone": 123456, "sku": "x"})
    twice = json.dumps({"inner": inner, "quoted": 'say "ann@b.cd"'})
    text, count = redacted(
        step(json.dumps({"body": inner, "again": [twice]})),
        step('{"body": "{not JSON, ann@b.cd", "deep": "' + "[" * 1_000 + '"}', "other"),
        step('{"body":"{\\"sku\\":  \\"y\\"}"}', "kept"),
    )
    assert "ann@b.cd" not in text
    assert "123456" not in text
    assert count == 6
    (line,) = text.splitlines()[1:]
    (first, _, kept) = msgspec.json.decode(line)["events"]
    body = json.loads(first["result"]["body"])
    assert body | {"email": ""} == {"email": "", "phone": 0, "sku": "x"}
    assert body["email"] == json.loads(json.loads(first["result"]["again"][0])["inner"])["email"]
    assert kept["result"]["body"] == '{"sku":  "y"}', "what has nothing sensitive stays as it was"


def test_a_salt_changes_pseudonyms():
    one, other = (
        Redaction(["*email*"], salt).redact(history(step('{"email":"a@b.cd"}')))
        for salt in ("one", "other")
    )
    assert one != other


def test_without_rules_nothing_is_replaced():
    assert "ann" in redacted(step('{"email":"ann"}'), rules="")[0]


def test_definitions_of_graphs_stay():
    started = schemas.GraphStarted('{"name":"g","password":{"task":"t"}}')
    assert '"password":{"task":"t"}' in redacted(started)[0]


def test_a_sensitive_text_is_replaced_where_it_is_the_name_of_a_field():
    params = '{"email":"ann@example.com","by":{"ann@example.com":{"total":3}}}'
    redacted = Redaction(patterns_of(REDACTED_FIELDS), "salt").redact(
        history(RunStarted(params, "seed"))
    )
    text = "".join(lines_of(redacted))
    assert "ann@example.com" not in text
    assert '"total":3' in text.replace('\\"', '"').replace(" ", "")
