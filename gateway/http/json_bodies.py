"""JSON that a request brings, as a struct; every fault is a problem that names its place.

Names twice, NaN, numbers beyond every float, text that is no Unicode and lists in lists without end
are refused whoever asks: the code that gets them is far from who sent them.
"""

import re
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect
from typing_extensions import override

from headwater.gateway.http.json_checks import NameTwice, check_text
from headwater.gateway.http.limited_bodies import JsonRequest
from headwater.gateway.http.problems import Problem
from headwater.gateway.patterns import with_descriptions
from headwater.processors.json_texts import TooDeep
from headwater.processors.texts import fault_of

#: What msgspec says of a fault, and where.
_FAULT: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_FIELD_SHOWN: Final = 60
_NAMES: Final = re.compile(r"(?<![\[\w])\w+")

#: The code of a body that is not what its route takes.
INVALID_BODY: Final = "invalid_body"
#: The same among operators' routes, where a body holds the parameters.
INVALID_PARAMETER: Final = "invalid_parameter"

S = TypeVar("S", bound=msgspec.Struct)


class OrderRequest(JsonRequest):
    """A request of an operator's, whose body is read by the struct that its handler takes."""

    @override
    def read_body(self, kind: type[Any], body: bytes) -> Any:
        check_json(body, INVALID_PARAMETER)
        return decoded(kind, body, code=INVALID_PARAMETER)


def check_texts(longest: int, **texts: str | None) -> None:
    """Refuses texts that no id and no code can be, so that nothing would fit them.

    Errors: Problem.
    """
    for field, text in texts.items():
        fault = fault_of(field, text, longest)
        if fault is not None:
            raise Problem(INVALID_PARAMETER, fault, field=field)


def decoded(kind: type[S], part: bytes | msgspec.Raw, at: str = "", code: str = INVALID_BODY) -> S:
    """Reads a part of a body that is known to be JSON; `at` is where in the body it lies.

    Errors: Problem, of the code.
    """
    try:
        found: S = _decoder(kind).decode(part)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), kind, at, code) from error
    return found


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    # msgspec takes 10 µs for a number such as 1e308, and Python a tenth of one.
    return msgspec.json.Decoder(kind, float_hook=float)


def _misfit(message: str, kind: type[msgspec.Struct], at: str, code: str) -> Problem:
    """The problem of a body that is not as its struct; msgspec says where, in words."""
    found = _FAULT.fullmatch(message)
    what, path = (found[1], found[2] or "") if found else (message, "")
    named = _FIELD.fullmatch(what)
    if named is None:
        return invalid(f"{at}{path}".rstrip(".") or "body", with_descriptions(what), code)
    name = ascii(named[1][:_FIELD_SHOWN])[1:-1]
    said = what.replace(named[1], name)
    if "unknown" in what:
        fields = ", ".join(_fields(kind, path)) or "no fields"
        said = f"expected {fields}, found {name}"
    return invalid(at + (f"{path}.{name}" if path else name), said, code)


def _fields(kind: type[msgspec.Struct], path: str) -> list[str]:
    """The fields of what lies at a path of a body, as msgspec spells paths."""
    found = _struct(inspect.type_info(kind))
    for name in _NAMES.findall(path):
        found = _struct(next(each.type for each in found.fields if each.encode_name == name))
    return [each.encode_name for each in found.fields]


def _struct(found: inspect.Type) -> inspect.StructType:
    """The struct that a type holds: itself, one of many, or one that may be null."""
    match found:
        case inspect.StructType():
            return found
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner):
            return _struct(inner)
        case inspect.UnionType(types=types):
            return _struct(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case _:
            raise TypeError(f"expected a type with fields, found {found}")


# --- JSON ----------------------------------------------------------------------------------------


def check_json(body: bytes, code: str = INVALID_BODY) -> None:
    """Refuses what is not JSON, or is no JSON that everybody reads alike.

    Errors: Problem, of the code.
    """
    try:
        check_text(body)
    except TooDeep as error:
        raise _malformed(str(error), code) from error
    except NameTwice as error:
        detail = f"expected each name once in an object, found {error} again"
        raise _malformed(detail, code) from error
    except ValueError as error:
        raise _malformed(f"expected JSON in UTF-8, found: {error}", code) from error


def _malformed(detail: str, code: str) -> Problem:
    return Problem(code, detail, field="body")


def invalid(field: str, detail: str, code: str = INVALID_BODY) -> Problem:
    """The problem of a body, at a place in it."""
    return Problem(code, f"{field}: {detail}", field=field)
