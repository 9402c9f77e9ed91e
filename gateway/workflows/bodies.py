"""Bodies of requests, checked down to the last field; pure.

The values of authors stay the JSON text that they came as. What must not be in them (names twice,
NaN, numbers beyond every float, text that is no Unicode) is looked for all the same: the code that
gets them is far from who sent them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.processors.runs.limits import (
    BATCH_MAX,
    EVENT_TYPE_MAX,
    INSTANCE_ID_MAX,
    name_fault,
    value_fault,
)
from headwater.schemas.history import Json

#: Levels of lists and objects in a body, its own included. JSON of services has a few, and parsers
#: give up at some hundred, each at another.
NESTING_MAX: Final = 128
#: Characters of a step's key: names of 256 in a path of a few loops and branches.
STEP_KEY_MAX: Final = 4_096
#: What one tick may be asked for.
TICK_MAX: Final = 10_000

_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BRACKETS: Final = b"[]{}"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKETS))
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_Fields: TypeAlias = Mapping[str, msgspec.Raw]


class NewInstance(NamedTuple):
    """An instance to be created; without an id it is given one."""

    id: str | None
    params: Json


class NewEvent(NamedTuple):
    """An event to be sent; `start` has the params of the instance that it may create."""

    type: str
    payload: Json
    start: Json | None


class Tick(NamedTuple):
    """How much a worker is to do; None is as much as there is."""

    max_instances: int | None
    max_steps: int | None


def read_instance(body: bytes) -> NewInstance:
    """Reads `{id?, params?}`.

    Errors: Problem, here and in all below.
    """
    return _instance(_fields(body, ("id", "params")), "")


def read_batch(body: bytes) -> list[tuple[str, Json]]:
    """Reads `{instances: [{id, params?}, …]}`: at most 100, each id once."""
    fields = _fields(body, ("instances",))
    items = _raw(fields, "instances", "", list[msgspec.Raw], "a list of instances")
    if not 1 <= len(items) <= BATCH_MAX:
        raise _invalid("instances", f"expected 1 to {BATCH_MAX} instances, found {len(items)}")
    found: dict[str, Json] = {}
    for number, item in enumerate(items):
        path = f"instances[{number}]"
        instance = _instance(_object(item, ("id", "params"), path), f"{path}.")
        if instance.id is None:
            raise _invalid(f"{path}.id", "expected an id, found none")
        if instance.id in found:
            raise _invalid(f"{path}.id", f"expected each id once, found {instance.id} again")
        found[instance.id] = instance.params
    return list(found.items())


def read_event(body: bytes) -> NewEvent:
    """Reads `{type, payload?, startIfMissing?: {params?}}`."""
    fields = _fields(body, ("type", "payload", "startIfMissing"))
    kind = _text(fields, "type", "")
    if kind is None:
        raise _invalid("type", "expected the type of the event, found none")
    fault = name_fault("an event type", kind, EVENT_TYPE_MAX)
    if fault:
        raise Problem("INVALID_EVENT_TYPE", fault, field="type")
    payload = _value(fields, "payload", "", "INVALID_EVENT_PAYLOAD")
    start = None
    if not _absent(fields, "startIfMissing"):
        inner = _object(fields["startIfMissing"], ("params",), "startIfMissing")
        start = _value(inner, "params", "startIfMissing.", "WORKFLOW_PARAMS_INVALID")
    return NewEvent(kind, payload, start)


def read_retry(body: bytes) -> str | None:
    """Reads `{fromStep?}`: the key of the first step that is done again."""
    key = _text(_fields(body, ("fromStep",)), "fromStep", "")
    if key is not None and not (0 < len(key) <= STEP_KEY_MAX and "\0" not in key):
        raise _invalid(
            "fromStep", f"expected a step's key of 1 to {STEP_KEY_MAX} characters without NUL"
        )
    return key


def read_tick(body: bytes) -> Tick:
    """Reads `{maxInstances?, maxSteps?}`."""
    fields = _fields(body, ("maxInstances", "maxSteps"))
    return Tick(_count(fields, "maxInstances"), _count(fields, "maxSteps"))


def read_nothing(body: bytes) -> None:
    """Reads what a route takes that takes nothing: no body, or `{}`."""
    _fields(body, ())


def is_json(content_type: str | None) -> bool:
    """Whether a body may be read as JSON in UTF-8; one that does not say what it is may."""
    if content_type is None:
        return True
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    named = kind == "application/json" or re.fullmatch(r"application/[\w.-]+\+json", kind)
    return bool(named) and all(charset in ("utf-8", "utf8") for charset in charsets)


def generic(text: Json) -> Any:  # noqa: ANN401 (any JSON value)
    """A value as Python has it, for hooks; the text is known to be JSON."""
    return json.loads(text)


# --- fields -------------------------------------------------------------------------------------


def _instance(fields: _Fields, path: str) -> NewInstance:
    instance_id = _text(fields, "id", path)
    if instance_id is not None:
        fault = name_fault("an instance id", instance_id, INSTANCE_ID_MAX)
        if fault:
            raise Problem("INVALID_INSTANCE_ID", fault, field=f"{path}id")
    return NewInstance(instance_id, _value(fields, "params", path, "WORKFLOW_PARAMS_INVALID"))


def _absent(fields: _Fields, name: str) -> bool:
    """Whether a field is not there; an optional field that is null says as much."""
    return name not in fields or bytes(fields[name]) == b"null"


def _text(fields: _Fields, name: str, path: str) -> str | None:
    if _absent(fields, name):
        return None
    text: str = _raw(fields, name, path, str, "text")
    return text


def _count(fields: _Fields, name: str) -> int | None:
    if _absent(fields, name):
        return None
    count: int = _raw(fields, name, "", int, "a whole number")
    if not 1 <= count <= TICK_MAX:
        raise _invalid(name, f"expected 1 to {TICK_MAX}, found {count}")
    return count


def _value(fields: _Fields, name: str, path: str, code: str) -> Json:
    """A value of an author's, as it came; `null` where there is none."""
    if name not in fields:
        return "null"
    text = bytes(fields[name]).decode()
    fault = value_fault(name, text)
    if fault:
        raise Problem(code, fault, field=f"{path}{name}")
    return text


def _raw(fields: _Fields, name: str, path: str, kind: type[Any], what: str) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(fields.get(name, msgspec.Raw(b"null")), type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(f"{path}{name}", f"expected {what} ({error})") from error


# --- JSON ---------------------------------------------------------------------------------------


def _fields(body: bytes, known: Sequence[str]) -> _Fields:
    """The fields of a body; no body at all is one without fields."""
    if not body.strip():
        return {}
    _check(body)
    return _object(body, known, "")


def _object(raw: bytes | msgspec.Raw, known: Sequence[str], path: str) -> _Fields:
    try:
        fields: _Fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise _invalid(path or "body", f"expected an object ({error})") from error
    unknown = [name for name in fields if name not in known]
    if unknown:
        name = ascii(unknown[0][:60])[1:-1]
        raise _invalid(
            f"{path}.{name}" if path else name,
            f"expected no fields but {', '.join(known) or 'none'}, found {len(unknown)} more",
        )
    return fields


def _check(body: bytes) -> None:
    """Refuses what is not JSON, or is no JSON that everybody reads alike."""
    try:
        msgspec.json.decode(body)
        too_deep = _depth(body) > NESTING_MAX
        if not too_deep:
            json.loads(body, object_pairs_hook=_once)
    except RecursionError:
        too_deep = True
    except _Twice as error:
        raise _malformed(f"expected each name once in an object, found {error} again") from error
    except ValueError as error:
        raise _malformed(f"expected JSON in UTF-8, found: {error}") from error
    if too_deep:
        raise _malformed(f"expected at most {NESTING_MAX} levels of lists and objects")


def _depth(body: bytes) -> int:
    """The levels of a text that is known to be JSON."""
    brackets = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


class _Twice(Exception):
    """A name that an object has twice."""


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(ascii(name[:60]))
            seen.add(name)


def _malformed(detail: str) -> Problem:
    return Problem("invalid_body", detail, field="body")


def _invalid(field: str, detail: str) -> Problem:
    return Problem("invalid_body", f"{field}: {detail}", field=field)


def wrong_type(content_type: str) -> NoReturn:
    """Refuses a body that says that it is something else.

    Errors: Problem.
    """
    raise Problem(
        "invalid_body",
        f"content-type: expected application/json, found {content_type[:60]!r}",
        field="content-type",
    )
