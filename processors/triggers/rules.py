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

For a signal `event` is its type (without it, the delivery's), `payload` is CEL like `params`.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from headwater.processors.expressions import Expression, ExpressionInvalid, Gives
from headwater.processors.runs.limits import EVENT_TYPE_MAX, PROGRAM, WORKFLOW_NAME_MAX, name_fault
from headwater.schemas.errors import Disposition, HeadwaterError

Mode = Literal["start", "signal", "signal_with_start"]

#: The name of a rule is that of a sender, too, behind a mark.
_NAME_MAX: Final = WORKFLOW_NAME_MAX - len(PROGRAM)


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
    event: str | None = None
    payload: str | None = None

    def types(self) -> frozenset[str] | None:
        if self.type is None:
            return None
        return frozenset([self.type] if isinstance(self.type, str) else self.type)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[_Written] = []


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
    event: str | None
    payload: Expression | None

    def concerns(self, source: str, type_: str) -> bool:
        """Whether it is about deliveries of this source and type."""
        return self.source == source and (self.types is None or type_ in self.types)


def read_rules(text: str) -> tuple[Rule, ...]:
    """Reads the text of a file of rules.

    Errors: RulesInvalid, with every problem of every rule.
    """
    try:
        written = msgspec.convert(tomllib.loads(text), _File).rule
    except tomllib.TOMLDecodeError as error:
        raise RulesInvalid(f"expected TOML, found: {error}") from None
    except msgspec.ValidationError as error:
        raise RulesInvalid(f"expected [[rule]] tables, found: {error}") from None
    problems: list[str] = []
    rules = [_compiled(each, problems) for each in written]
    names = [each.name for each in written]
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
    _check("workflow", {rule.name: rule.workflow for rule in rules}, workflows)


def check_sources(rules: Iterable[Rule], sources: Collection[str]) -> None:
    """Sees that the sources that rules name are there: no delivery would ever be of another.

    Errors: RulesInvalid.
    """
    _check("source", {rule.name: rule.source for rule in rules}, sources)


def _check(field: str, named: Mapping[str, str], names: Collection[str]) -> None:
    known = ", ".join(sorted(names))
    problems = [
        f"rule {rule}: expected {field} to be one of {known}; found {name!r}"
        for rule, name in named.items()
        if name not in names
    ]
    if problems:
        raise RulesInvalid("\n".join(problems))


def _compiled(written: _Written, problems: list[str]) -> Rule | None:
    faults = list(_faults(written))

    def expression(field: str, gives: Gives) -> Expression | None:
        source = getattr(written, field)
        if source is None:
            return None
        try:
            return Expression(source, gives)
        except ExpressionInvalid as error:
            faults.append(f"{field}, {error}\n  {source}")
            return None

    id_ = expression("id", Gives.TEXT)
    rule = {
        "when": expression("when", Gives.CONDITION),
        "params": expression("params", Gives.JSON),
        "payload": expression("payload", Gives.JSON),
    }
    problems += [f"rule {written.name}: {fault}" for fault in faults]
    if faults or id_ is None:
        return None
    return Rule(
        name=written.name,
        source=written.source,
        types=written.types(),
        workflow=written.workflow,
        mode=written.mode,
        id=id_,
        event=written.event,
        **rule,
    )


def _faults(written: _Written) -> Iterable[str]:
    """What is wrong with a rule beside its expressions."""
    yield from filter(
        None,
        [
            name_fault("name", written.name, _NAME_MAX),
            name_fault("workflow", written.workflow, WORKFLOW_NAME_MAX),
        ],
    )
    types = written.types()
    if written.mode == "start":
        if written.event is not None or written.payload is not None:
            yield "expected event and payload with the modes signal and signal_with_start only"
        return
    if written.mode == "signal" and written.params is not None:
        yield "expected params with the modes start and signal_with_start only"
    yield from _event_faults(written.event, types)


def _event_faults(event: str | None, types: frozenset[str] | None) -> Iterable[str]:
    if event is None and types is None:
        yield "expected event, the type of the signal, for a rule about every type; found none"
    for each in sorted(types or ()) if event is None else [event]:
        fault = name_fault("event, the type of the signal,", each, EVENT_TYPE_MAX)
        if fault:
            yield fault
