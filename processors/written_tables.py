"""Tables of TOML as operators write them, read field by field: all faults are told at once."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec


def fields_of(
    table: Mapping[str, Any], kind: type[msgspec.Struct]
) -> tuple[dict[str, Any], list[str]]:
    """The fields of a struct that a table has right, with the defaults of others, and the faults.

    Shape:  without faults the fields make the struct; a field that is wrong or missing is left out.
    """
    known = msgspec.structs.fields(kind)
    names = [field.name for field in known]
    strange = [name for name in table if name not in names]
    faults = [f"unknown field `{name}`: expected one of {', '.join(names)}" for name in strange]
    fields = {}
    for field in known:
        if field.name in table:
            try:
                fields[field.name] = msgspec.convert(table[field.name], field.type)
            except msgspec.ValidationError as error:
                faults.append(_fault(field.name, field.type, table[field.name], str(error)))
        elif field.required:
            faults.append(f"expected the field `{field.name}`, found none")
        else:
            made = field.default_factory
            fields[field.name] = field.default if made is msgspec.NODEFAULT else made()
    return fields, faults


def _fault(name: str, kind: Any, value: object, message: str) -> str:  # noqa: ANN401 (a type)
    if get_origin(kind) is Literal:
        return f"{name}: expected one of {', '.join(get_args(kind))}; found {value!r}"
    return message.replace("`$", f"`{name}") if "`$" in message else f"{message} - at `{name}`"
