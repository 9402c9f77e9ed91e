"""Rules, as operators write them: a TOML file of `[[rule]]` tables, read and checked whole.

    [[rule]]
    name = "night-review"           # names its signals and its dead letters
    source = "terra"
    type = "sleep"                  # or a list of types; without it, every type
    workflow = "night-review"
    mode = "start"                  # start, signal, or signal_with_start
    id = '"night-" + event.user_id' # CEL
    when = 'size(event.body.data) > 0'  # CEL; a field that is missing makes it false
    params = '{"user": event.user_id}'  # CEL; without it, the delivery
    labels = '{"source": event.source}' # CEL; texts by name, by which the instance is found

For a signal `event` is its type (without it, the delivery's), `payload` is CEL like `params`.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from headwater.processors.expressions import Expression, ExpressionInvalid, Gives
from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    PROGRAM,
    WORKFLOW_NAME_MAX,
    name_problem,
)
from headwater.processors.written_tables import fields_of
from headwater.schemas.errors import Disposition, HeadwaterError

Mode = Literal["start", "signal", "signal_with_start"]

#: The name of a rule is that of a sender, too, behind a mark.
_NAME_MAX: Final = WORKFLOW_NAME_MAX - len(PROGRAM)

#: The fields that are expressions, and what each has to give.
_EXPRESSIONS: Final[Mapping[str, Gives]] = {
    "id": Gives.TEXT,
    "when": Gives.CONDITION,
    "params": Gives.JSON,
    "payload": Gives.JSON,
    "labels": Gives.JSON,
}


class RulesInvalid(HeadwaterError):
    """Rules that cannot be used; one line each, which names rule and place."""

    disposition = Disposition.REJECT
    code = "rules_invalid"


class _Written(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule as it is written."""

    name: str
    source: str
    type: str | list[str] | None = None
    workflow: str
    mode: Mode
    id: str
    when: str | None = None
    params: str | None = None
    labels: str | None = None
    event: str | None = None
    payload: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[dict[str, Any]] = []


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, compiled.

    Shape:  types None stands for all; event None for the delivery's type; params and payload None
            for the delivery.
    """

    name: str
    source: str
    types: frozenset[str] | None
    workflow: str
    mode: Mode
    id: Expression
    when: Expression | None
    params: Expression | None
    labels: Expression | None
    event: str | None
    payload: Expression | None

    def concerns(self, source: str, type_: str) -> bool:
        """Whether it is about deliveries of this source and type."""
        return self.source == source and (self.types is None or type_ in self.types)


def read_rules(text: str, sources: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Reads the text of a file of rules, about these sources if they are known.

    Errors: RulesInvalid, with every problem of every rule.
    """
    try:
        tables = msgspec.convert(tomllib.loads(text), _File).rule
    except tomllib.TOMLDecodeError as error:
        raise RulesInvalid(f"expected TOML, found: {error}") from None
    except msgspec.ValidationError as error:
        raise RulesInvalid(f"expected [[rule]] tables, found: {error}") from None
    problems: list[str] = []
    rules = [_read(number, each, sources, problems) for number, each in enumerate(tables, 1)]
    names = [str(each["name"]) for each in tables if "name" in each]
    problems += [
        f"rule {name}: expected each name once, found {names.count(name)}"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    if problems:
        raise RulesInvalid("\n".join(problems))
    return tuple(rule for rule in rules if rule is not None)


def check_workflows(rules: Iterable[Rule], workflows: Collection[str]) -> None:
    """Sees that the workflows that rules name are there.

    Errors: RulesInvalid.
    """
    problems = [
        f"rule {rule.name}: {_unknown('workflow', rule.workflow, workflows)}"
        for rule in rules
        if rule.workflow not in workflows
    ]
    if problems:
        raise RulesInvalid("\n".join(problems))


def _unknown(field: str, name: str, names: Iterable[str]) -> str:
    return f"expected {field} to be one of {', '.join(sorted(names))}; found {name!r}"


def _read(
    number: int, table: Mapping[str, Any], sources: Collection[str] | None, problems: list[str]
) -> Rule | None:
    fields, faults = fields_of(table, _Written)
    expressions: dict[str, Any] = {}
    for field, gives in _EXPRESSIONS.items():
        source = fields.get(field)
        try:
            expressions[field] = None if source is None else Expression(source, gives)
        except ExpressionInvalid as error:
            faults.append(f"{field}, {error}\n  {source}")
    faults += _faults(fields)
    # No delivery would ever be of another source.
    if sources is not None and fields.get("source", "") not in {*sources, ""}:
        faults.append(_unknown("source", fields["source"], sources))
    problems += [f"rule {table.get('name', number)}: {fault}" for fault in faults]
    if faults:
        return None
    return Rule(
        name=fields["name"],
        source=fields["source"],
        types=_types(fields),
        workflow=fields["workflow"],
        mode=fields["mode"],
        event=fields["event"],
        **expressions,
    )


def _types(fields: Mapping[str, Any]) -> frozenset[str] | None:
    types = fields.get("type")
    return None if types is None else frozenset([types] if isinstance(types, str) else types)


def _faults(fields: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong with fields of a rule beside their types; those that are wrong are left out."""
    for field, longest in (("name", _NAME_MAX), ("workflow", WORKFLOW_NAME_MAX)):
        fault = name_problem(field, fields[field], longest) if field in fields else None
        if fault:
            yield fault
    event, mode = fields.get("event"), fields.get("mode")
    if mode == "start":
        if event is not None or fields.get("payload") is not None:
            yield "expected event and payload with the modes signal and signal_with_start only"
        return
    given = [name for name in ("params", "labels") if fields.get(name) is not None]
    if mode == "signal" and given:
        yield f"expected {' and '.join(given)} with the modes start and signal_with_start only"
    if mode is not None and "type" in fields and "event" in fields:
        yield from _event_faults(event, _types(fields))


def _event_faults(event: str | None, types: frozenset[str] | None) -> Iterable[str]:
    if event is None and types is None:
        yield "expected event, the type of the signal, for a rule about every type; found none"
    for each in sorted(types or ()) if event is None else [event]:
        fault = name_problem("event, the type of the signal,", each, EVENT_TYPE_MAX)
        if fault:
            yield fault
