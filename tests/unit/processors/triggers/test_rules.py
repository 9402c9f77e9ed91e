"""Rules as they are written: what is read, and what is refused with rule, field and place."""

import pytest

from headwater.processors.triggers.rules import RulesInvalid, check_workflows, read_rules

GOOD = {
    "name": '"review"',
    "source": '"terra"',
    "type": '"sleep"',
    "workflow": '"night-review"',
    "mode": '"start"',
    "id": "'\"night-\" + event.user_id'",
}


def written(**changes: str | None) -> str:
    fields = {**GOOD, **changes}
    lines = [f"{key} = {value}" for key, value in fields.items() if value is not None]
    return "\n".join(["[[rule]]", *lines])


def refusal(*texts: str) -> str:
    with pytest.raises(RulesInvalid) as caught:
        read_rules("\n".join(texts))
    return caught.value.message


def test_a_file_of_rules():
    first, second = read_rules(
        written()
        + "\n"
        + written(
            name='"all"',
            type=None,
            mode='"signal_with_start"',
            when="'has(event.body.data)'",
            params="'{\"user\": event.user_id}'",
            event='"delivery"',
            payload="'event.body.data'",
        ),
    )
    assert (first.name, first.types, first.mode) == ("review", frozenset({"sleep"}), "start")
    assert first.concerns("terra", "sleep")
    assert not first.concerns("terra", "daily")
    assert not first.concerns("stripe", "sleep")
    assert second.concerns("terra", "daily")
    assert second.event == "delivery"


def test_an_empty_file_has_no_rules():
    assert read_rules("# none yet\n") == ()


def test_types_may_be_several():
    (rule,) = read_rules(written(type='["sleep", "daily"]'))
    assert rule.concerns("terra", "daily")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"id": "'event.user_id +'"}, "rule review: id, line 1, column 16: Syntax error"),
        ({"id": "'user_id'"}, "rule review: id, line 1, column 1: undeclared reference"),
        ({"id": "'7'"}, "rule review: id, expected an expression that gives a text, found int"),
        ({"when": "'\"yes\"'"}, "rule review: when, expected an expression that gives true or"),
        ({"params": "'{'"}, "rule review: params, line 1, column"),
        (
            {"mode": '"begin"'},
            "rule review: mode: expected one of start, signal, signal_with_start; found 'begin'",
        ),
        ({"id": None}, "rule review: expected the field `id`, found none"),
        (
            {"workflw": '"x"'},
            "rule review: unknown field `workflw`: expected one of name, source, type,",
        ),
        ({"source": "7"}, "rule review: Expected `str`, got `int` - at `source`"),
        ({"name": '"two words"'}, "rule two words: expected name of 1 to 63 characters"),
        ({"workflow": '"-x"'}, "rule review: expected workflow of 1 to 64 characters"),
        ({"event": '"x"'}, "rule review: expected event and payload with the modes signal and"),
        ({"payload": "'1'"}, "rule review: expected event and payload with the modes signal"),
        ({"mode": '"signal"', "params": "'1'"}, "expected params with the modes start and"),
        ({"mode": '"signal"', "labels": "'{}'"}, "expected labels with the modes start and"),
        (
            {"mode": '"signal"', "type": None},
            "rule review: expected event, the type of the signal,",
        ),
        ({"mode": '"signal"', "type": '"lab_report.done"'}, "found 'lab_report.done'"),
        ({"mode": '"signal"', "event": '"a b"'}, "found 'a b'"),
    ],
)
def test_a_rule_that_cannot_be(changes: dict[str, str | None], told: str):
    assert told in refusal(written(**changes))


def test_what_is_no_toml():
    assert "expected TOML, found" in refusal("[[rule]\n")


def test_all_problems_are_told_together():
    reported = refusal(written(id="'x'"), written(name='"other"', when="'1'"), written())
    assert reported.count("rule ") == 3
    assert "rule review: expected each name once, found 2" in reported


def test_all_problems_of_one_rule_are_told_together():
    wrong = {"mode": '"begin"', "source": "7", "id": "'x'", "when": None, "whenn": '"x"'}
    reported = refusal(written(**wrong, workflow='"-x"', params="'{'"))
    result = ["mode", "source", "id,", "whenn", "workflow", "params"]
    assert [word for word in result if word not in reported] == []
    assert reported.count("rule review: ") == len(result)


def test_a_source_that_nobody_posts_as_is_told_beside_other_problems():
    with pytest.raises(RulesInvalid) as caught:
        read_rules(written(id="'x'"), {"tera", "stripe"})
    assert "rule review: id, line 1" in caught.value.message
    assert "expected source to be one of stripe, tera; found 'terra'" in caught.value.message


def test_a_workflow_has_to_be_there():
    rules = read_rules(written())
    check_workflows(rules, {"night-review", "order"})
    with pytest.raises(RulesInvalid) as caught:
        check_workflows(rules, {"order", "bill"})
    assert caught.value.message == (
        "rule review: expected workflow to be one of bill, order; found 'night-review'"
    )
