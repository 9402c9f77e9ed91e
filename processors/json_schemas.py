"""JSON Schemas: whether a value is what its author said it would be. Nothing outside is read."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jsonschema_rs

#: What is told of a value that is wrong in many places.
_TOLD: Final = 5
_SHOWN: Final = 200


class SchemaInvalid(ValueError):
    """What is no JSON Schema; says why."""


class JsonSchema:
    """A schema, compiled once."""

    def __init__(
        self, schema: Mapping[str, Any], formats: Mapping[str, Callable[[str], bool]] | None = None
    ) -> None:
        """Compile a schema.

        Args:
            schema: Any draft, 2020-12 if it names none. Patterns are those that take linear time.
            formats: Formats that a text has to have, by name. All others are annotations.

        Raises:
            SchemaInvalid: It is no schema, or refers to anything outside of itself.
        """
        try:
            self._validator = jsonschema_rs.validator_for(
                dict(schema),
                offline=True,
                formats=None if formats is None else dict(formats),
                validate_formats=formats is not None,
                pattern_options=jsonschema_rs.RegexOptions(),
            )
        except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
            raise SchemaInvalid(f"expected a JSON Schema: {_first_line(error)}") from None

    def fault(self, value: object, root: str) -> str | None:
        """What is wrong with a value, or None.

        Shape:  root is what the value is called; each fault is told with its path.
        """
        try:
            if self._validator.is_valid(value):
                return None
            return _told(self._validator.iter_errors(value), root)
        except (ValueError, RecursionError) as error:
            return f"{root} cannot be checked: {_first_line(error)}"


def _told(errors: Iterable[jsonschema_rs.ValidationError], root: str) -> str:
    lines: list[str] = []
    more = 0
    for error in errors:
        if len(lines) < _TOLD:
            lines.append(f"{_path(root, error.instance_path)}: {_first_line(error)}")
        else:
            more += 1
    return "; ".join(lines) + (f"; and {more} more" if more else "")


def _path(root: str, path: Iterable[str | int]) -> str:
    return root + "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in path)


def _first_line(error: Exception) -> str:
    line = getattr(error, "message", str(error)).partition("\n")[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
