"""Decode JSON request bodies into structs; every error becomes a problem with its path.

Duplicate names, NaN, numbers that no float can hold, invalid Unicode and too deep nesting are
rejected for all callers: the code that processes the value runs far from the sender.
"""

import re
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect
from typing_extensions import override

from headwater.gateway.api.json_checks import DuplicateName, check_text
from headwater.gateway.api.limited_bodies import JsonRequest
from headwater.gateway.api.problems import Problem
from headwater.gateway.settings.patterns import with_descriptions
from headwater.processors.json_texts import TooDeep
from headwater.processors.texts import text_problem

#: An error message of msgspec, with its path.
_ERROR: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_FIELD_SHOWN: Final = 60
_NAMES: Final = re.compile(r"(?<![\[\w])\w+")

#: Code of a body that does not match the schema of its route.
INVALID_BODY: Final = "invalid_body"
#: The same for operator routes, where the body holds the parameters.
INVALID_PARAMETER: Final = "invalid_parameter"

S = TypeVar("S", bound=msgspec.Struct)


class OperatorRequest(JsonRequest):
    """A request of an operator. Its body is decoded into the struct that the handler declares."""

    @override
    def read_body(self, kind: type[Any], body: bytes) -> Any:
        check_json(body, INVALID_PARAMETER)
        return decoded(kind, body, code=INVALID_PARAMETER)


def check_texts(longest: int, **texts: str | None) -> None:
    """Reject texts that cannot match any id or code.

    Args:
        longest: Maximum length in characters.
        **texts: Texts by the name of their field.

    Raises:
        Problem: A text is not valid.
    """
    for field, text in texts.items():
        error = text_problem(field, text, longest)
        if error is not None:
            raise Problem(INVALID_PARAMETER, error, field=field)


def decoded(kind: type[S], part: bytes | msgspec.Raw, at: str = "", code: str = INVALID_BODY) -> S:
    """Decode a part of a body that is known to be valid JSON.

    Args:
        kind: Struct to decode into.
        part: JSON.
        at: Path of the part in the body, a prefix of the paths in errors.
        code: Code of the problem.

    Raises:
        Problem: The part does not match the struct.
    """
    try:
        value: S = _decoder(kind).decode(part)
    except msgspec.ValidationError as error:
        raise _validation_problem(str(error), kind, at, code) from error
    return value


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    # msgspec takes 10 µs for a number such as 1e308, Python's float 0.1 µs.
    return msgspec.json.Decoder(kind, float_hook=float)


def _validation_problem(message: str, kind: type[msgspec.Struct], at: str, code: str) -> Problem:
    """Translate an error message of msgspec into a problem."""
    match = _ERROR.fullmatch(message)
    what, path = (match[1], match[2] or "") if match else (message, "")
    field = _FIELD.fullmatch(what)
    if field is None:
        return invalid(f"{at}{path}".rstrip(".") or "body", with_descriptions(what), code)
    name = ascii(field[1][:_FIELD_SHOWN])[1:-1]
    detail = what.replace(field[1], name)
    if "unknown" in what:
        fields = ", ".join(_fields(kind, path)) or "no fields"
        detail = f"expected {fields}, found {name}"
    return invalid(at + (f"{path}.{name}" if path else name), detail, code)


def _fields(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Return the field names of the struct at a path, in msgspec's notation of paths."""
    struct = _struct(inspect.type_info(kind))
    for name in _NAMES.findall(path):
        struct = _struct(next(field.type for field in struct.fields if field.encode_name == name))
    return [field.encode_name for field in struct.fields]


def _struct(type_: inspect.Type) -> inspect.StructType:
    """Return the struct in a type: the type itself, or that of a sequence or an optional."""
    match type_:
        case inspect.StructType():
            return type_
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner):
            return _struct(inner)
        case inspect.UnionType(types=types):
            return _struct(next(t for t in types if not isinstance(t, inspect.NoneType)))
        case _:
            raise TypeError(f"expected a type with fields, found {type_}")


# --- JSON ----------------------------------------------------------------------------------------


def check_json(body: bytes, code: str = INVALID_BODY) -> None:
    """Reject what is not JSON, or what parsers read differently.

    Raises:
        Problem: The body is not acceptable; its code is `code`.
    """
    try:
        check_text(body)
    except TooDeep as error:
        raise _malformed(str(error), code) from error
    except DuplicateName as error:
        detail = f"expected each name once in an object, found {error} again"
        raise _malformed(detail, code) from error
    except ValueError as error:
        raise _malformed(f"expected JSON in UTF-8, found: {error}", code) from error


def _malformed(detail: str, code: str) -> Problem:
    return Problem(code, detail, field="body")


def invalid(field: str, detail: str, code: str = INVALID_BODY) -> Problem:
    """Return the problem of a body with an error at a field."""
    return Problem(code, f"{field}: {detail}", field=field)
