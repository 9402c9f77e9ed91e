"""What in a document is not of its type: all of it. msgspec by itself tells the first mistake."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec


def mistakes(data: object, kind: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (a type)
    """All that keeps data from being of a kind; nothing if it is.

    Shape:  paths and messages. Parts that are wrong stand for the whole; only a whole whose parts
            are right is wrong by itself.
    """
    try:
        msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        what, _, _ = str(error).partition(" - at `")
        by_itself = (path.lstrip(".") or "$", what[:1].lower() + what[1:])
        yield from list(_within(data, kind, path)) or (by_itself,)


def _within(data: object, kind: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (a type)
    for choice in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        holds = get_origin(choice) or choice
        if isinstance(data, dict) and issubclass(holds, msgspec.Struct):
            yield from _of_fields(data, holds, path)
        elif isinstance(data, dict) and holds is dict:
            for key, value in data.items():
                yield from mistakes(value, get_args(choice)[1], f"{path}.{key}")
        elif isinstance(data, list | tuple) and holds is tuple:
            for index, value in enumerate(data):
                yield from mistakes(value, get_args(choice)[0], f"{path}[{index}]")


def _of_fields(
    data: dict[str, object], part: type[msgspec.Struct], path: str
) -> Iterator[tuple[str, str]]:
    known = {field.encode_name: field for field in msgspec.structs.fields(part)}
    here = path.lstrip(".") or "$"
    for name, field in known.items():
        if name in data:
            yield from mistakes(data[name], field.type, f"{path}.{name}")
        elif field.required:
            yield here, f"expected the field {name!r}, found none"
    for name in data:
        if name not in known:
            yield here, f"expected one of the fields {', '.join(known)}, found {name!r:.80}"
