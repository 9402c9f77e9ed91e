"""Structs from JSON whose fields may have wrong types, which costs these fields only.

Decoding into a struct stops at the first field of another type. A record that fails is read again
here, field by field; fields with another type are left out, and their paths are returned.
"""

from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

_MISSING: Final = object()


def read_struct(kind: type[S], value: dict[str, Any], path: str, wrong: list[str]) -> S:
    """Return a struct of the fields that have the declared types.

    Args:
        kind: The struct; all of its fields have defaults.
        value: A JSON object.
        path: Its path in the delivery; empty for the delivery itself.
        wrong: Receives the paths of the fields that were left out.
    """
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        member = value.get(field.encode_name)
        if member is not None:
            full_path = f"{path}.{field.encode_name}" if path else field.encode_name
            read = _read(field.type, member, full_path, wrong)
            if read is not _MISSING:
                fields[field.name] = read
    return kind(**fields)


def _read(annotation: Any, value: Any, path: str, wrong: list[str]) -> Any:  # noqa: ANN401, JSON
    """Return a value of a type, or _MISSING."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    if get_origin(annotation) in (tuple, dict):
        kinds = [annotation]
    for kind in kinds:
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return read_struct(kind, value, path, wrong)
        if isinstance(value, list) and get_origin(kind) is tuple:
            item = get_args(kind)[0]
            read = [
                _read(item, one, f"{path}[{number}]", wrong) for number, one in enumerate(value)
            ]
            return tuple(one for one in read if one is not _MISSING)
        if isinstance(value, dict) and get_origin(kind) is dict:
            return {name: msgspec.Raw(msgspec.json.encode(one)) for name, one in value.items()}
        if kind is msgspec.Raw:
            return msgspec.Raw(msgspec.json.encode(value))
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        wrong.append(path)
        return _MISSING
