"""Rules, as operators write them: a TOML file of `[[rule]]` tables, parsed and checked whole.

    [[rule]]
    name = "night-review"           # names its signals and its dead letters
    source = "terra"
    type = "sleep"                  # or a list of types; without it, every type
    workflow = "night-review"
    mode = "start"                  # start, signal, or signal_with_start
    id = '"night-" + event.user_id' # CEL
    when = 'size(event.body.data) > 0'  # CEL; a missing field makes it false
    params = '{"user": event.user_id}'  # CEL; without it, the delivery
    labels = '{"source": event.source}' # CEL; texts by name, by which instances are queried

For a signal, `event` is its type (default: the delivery's type), `payload` is CEL like `params`.

A rule may concern the messages of a queue instead of deliveries: `queue` in place of `source` and
`type`. A trailing `*` matches any rest of a name. Without `id`, a start takes that of the message.

The source `headwater` has notifications, too: `instance_errored` and `dead_letter` (`reactions`).
Without `id`, a start takes that of the notification.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from headwater.processors.cel_programs import ExpressionInvalid, ResultKind
from headwater.processors.expressions import Expression
from headwater.processors.notifications import SOURCE as NOTIFICATIONS
from headwater.processors.queue_messages import queue_name_problem
from headwater.processors.runs.limits import (
    EVENT_TYPE_MAX,
    PROGRAM,
    WORKFLOW_NAME_MAX,
    name_problem,
)
from headwater.processors.toml_tables import read_fields
from headwater.schemas.errors import Disposition, HeadwaterError

Mode = Literal["start", "signal", "signal_with_start"]

#: A rule's name is also part of a sender's name, after a prefix.
_NAME_MAX: Final = WORKFLOW_NAME_MAX - len(PROGRAM)

#: The fields that are expressions, and the kind of their results.
_EXPRESSIONS: Final[Mapping[str, ResultKind]] = {
    "id": ResultKind.TEXT,
    "when": ResultKind.CONDITION,
    "params": ResultKind.JSON,
    "payload": ResultKind.JSON,
    "labels": ResultKind.JSON,
}


class RulesInvalid(HeadwaterError):
    """Invalid rules; one line per problem, with rule and position."""

    disposition = Disposition.REJECT
    code = "rules_invalid"


class _Written(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule as it is written."""

    name: str
    source: str = ""
    type: str | list[str] | None = None
    queue: str = ""
    workflow: str
    mode: Mode
    id: str = ""
    when: str | None = None
    params: str | None = None
    labels: str | None = None
    event: str | None = None
    payload: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[dict[str, Any]] = []


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled rule.

    Attributes:
        source: Source of deliveries; empty for a rule about a queue.
        types: Types of deliveries; None for all.
        queue: Name of a queue, or the beginning of names before a `*`; empty for deliveries.
        id: None for the id of the message, or of the notification.
        event: Type of the signal; None for the delivery's type.
        params: None for the whole delivery.
        payload: None for the whole delivery.
    """

    name: str
    source: str
    types: frozenset[str] | None
    queue: str
    workflow: str
    mode: Mode
    id: Expression | None
    when: Expression | None
    params: Expression | None
    labels: Expression | None
    event: str | None
    payload: Expression | None

    def concerns(self, source: str, type_: str) -> bool:
        """Return whether it matches deliveries of this source and type."""
        return self.source == source and (self.types is None or type_ in self.types)

    def takes(self, queue: str) -> bool:
        """Return whether it matches messages of this queue."""
        if not self.queue.endswith("*"):
            return self.queue == queue
        return queue.startswith(self.queue[:-1])


def read_rules(text: str, sources: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Parse a rules file.

    Args:
        text: Text of the file.
        sources: Known sources; None if they are unknown.

    Raises:
        RulesInvalid: Lists every problem of every rule.
    """
    try:
        tables = msgspec.convert(tomllib.loads(text), _File).rule
    except tomllib.TOMLDecodeError as error:
        raise RulesInvalid(f"expected TOML, found: {error}") from None
    except msgspec.ValidationError as error:
        raise RulesInvalid(f"expected [[rule]] tables, found: {error}") from None
    problems: list[str] = []
    rules = [_read(number, table, sources, problems) for number, table in enumerate(tables, 1)]
    names = [str(table["name"]) for table in tables if "name" in table]
    problems += [
        f"rule {name}: expected each name once, found {names.count(name)}"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    if problems:
        raise RulesInvalid("\n".join(problems))
    return tuple(rule for rule in rules if rule is not None)


def check_workflows(rules: Iterable[Rule], workflows: Collection[str]) -> None:
    """Check that the workflows of rules exist.

    Raises:
        RulesInvalid: Some do not exist.
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
    number: int, table: Mapping[str, Any], sources: Collection[str] | None, all_problems: list[str]
) -> Rule | None:
    fields, problems = read_fields(table, _Written)
    expressions: dict[str, Any] = {}
    for field, kind in _EXPRESSIONS.items():
        source = fields.get(field)
        try:
            expressions[field] = Expression(source, kind) if source else None
        except ExpressionInvalid as error:
            problems.append(f"{field}, {error}\n  {source}")
    problems += _field_problems(fields)
    # No delivery could have another source.
    if sources is not None and fields.get("source", "") not in {*sources, NOTIFICATIONS, ""}:
        problems.append(_unknown("source", fields["source"], sources))
    all_problems += [f"rule {table.get('name', number)}: {problem}" for problem in problems]
    if problems:
        return None
    return Rule(
        name=fields["name"],
        source=fields["source"],
        types=_types(fields),
        queue=fields["queue"],
        workflow=fields["workflow"],
        mode=fields["mode"],
        event=fields["event"],
        **expressions,
    )


def _types(fields: Mapping[str, Any]) -> frozenset[str] | None:
    types = fields.get("type")
    return None if types is None else frozenset([types] if isinstance(types, str) else types)


def _field_problems(fields: Mapping[str, Any]) -> Iterable[str]:
    """Yield problems of a rule's fields besides their types; fields of wrong type are missing."""
    for field, longest in (("name", _NAME_MAX), ("workflow", WORKFLOW_NAME_MAX)):
        problem = name_problem(field, fields[field], longest) if field in fields else None
        if problem:
            yield problem
    yield from _subject_problems(fields)
    event, mode = fields.get("event"), fields.get("mode")
    if mode == "start":
        if event is not None or fields.get("payload") is not None:
            yield "expected event and payload with the modes signal and signal_with_start only"
        return
    start_fields = [name for name in ("params", "labels") if fields.get(name) is not None]
    if mode == "signal" and start_fields:
        names = " and ".join(start_fields)
        yield f"expected {names} with the modes start and signal_with_start only"
    if mode is not None and "type" in fields and "event" in fields and _concerns_one(fields):
        yield from _event_problems(event, _types(fields))


def _concerns_one(fields: Mapping[str, Any]) -> bool:
    """Return whether a rule names either a source or a queue, as far as they are valid."""
    return not {"source", "queue"} <= fields.keys() or (
        bool(fields["source"]) is not bool(fields["queue"])
    )


def _subject_problems(fields: Mapping[str, Any]) -> Iterable[str]:
    """Yield problems of what a rule is about: deliveries of a source, or messages of a queue."""
    if not _concerns_one(fields):
        found = "both" if fields["source"] else "neither"
        yield f"expected the field `source` or the field `queue`, found {found}"
        return
    without_id = fields.get("id") == ""
    if not fields.get("queue"):
        # Notifications have ids for what they start.
        starts_once = fields.get("source") == NOTIFICATIONS and fields.get("mode") == "start"
        if without_id and not starts_once:
            yield "expected the field `id`, found none"
        return
    problem = queue_name_problem(fields["queue"])
    if problem:
        yield problem
    if fields.get("type") is not None:
        yield "expected type with the field source only"
    if without_id and fields.get("mode") not in {None, "start"}:
        yield "expected the field `id`, the instance that is signaled, found none"


def _event_problems(event: str | None, types: frozenset[str] | None) -> Iterable[str]:
    if event is None and types is None:
        yield "expected event, the type of the signal, for a rule about every type; found none"
    for type_ in sorted(types or ()) if event is None else [event]:
        problem = name_problem("event, the type of the signal,", type_, EVENT_TYPE_MAX)
        if problem:
            yield problem
