"""Find all type errors in a document. msgspec by itself reports only the first one."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec


def mistakes(data: object, kind: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (a type)
    """Yield the path and message of every type error in `data`; nothing if it is of this kind.

    If parts are wrong, only they are reported, not the whole that contains them.
    """
    try:
        msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, _ = str(error).partition(" - at `")
        own_error = (path.lstrip(".") or "$", message[:1].lower() + message[1:])
        yield from list(_within(data, kind, path)) or (own_error,)


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
    location = path.lstrip(".") or "$"
    for name, field in known.items():
        if name in data:
            yield from mistakes(data[name], field.type, f"{path}.{name}")
        elif field.required:
            yield location, f"expected the field {name!r}, found none"
    for name in data:
        if name not in known:
            yield location, f"expected one of the fields {', '.join(known)}, found {name!r:.80}"
