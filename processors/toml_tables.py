"""TOML tables as operators write them, read field by field, so that all problems are reported."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec


def read_fields(
    table: Mapping[str, Any], kind: type[msgspec.Struct]
) -> tuple[dict[str, Any], list[str]]:
    """Read the fields of a struct from a table.

    Args:
        table: The table.
        kind: The struct.

    Returns:
        Valid fields, with defaults of others, and problems. Without problems the fields make up
        the struct; a field that is invalid or missing is left out.
    """
    known = msgspec.structs.fields(kind)
    names = [field.name for field in known]
    unknown = [name for name in table if name not in names]
    problems = [f"unknown field `{name}`: expected one of {', '.join(names)}" for name in unknown]
    fields = {}
    for field in known:
        if field.name in table:
            try:
                fields[field.name] = msgspec.convert(table[field.name], field.type)
            except msgspec.ValidationError as error:
                problems.append(_problem(field.name, field.type, table[field.name], str(error)))
        elif field.required:
            problems.append(f"expected the field `{field.name}`, found none")
        else:
            factory = field.default_factory
            fields[field.name] = field.default if factory is msgspec.NODEFAULT else factory()
    return fields, problems


def _problem(name: str, kind: Any, value: object, message: str) -> str:  # noqa: ANN401 (a type)
    if get_origin(kind) is Literal:
        return f"{name}: expected one of {', '.join(get_args(kind))}; found {value!r}"
    return message.replace("`$", f"`{name}") if "`$" in message else f"{message} - at `{name}`"
