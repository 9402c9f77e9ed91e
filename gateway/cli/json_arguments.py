"""JSON on the command line: inline, from a file, or from standard input."""

import json
from pathlib import Path
from typing import Any

import click
from typing_extensions import override


class JsonArgument(click.ParamType):
    """A JSON value: `{"sku": "x"}`, `@params.json`, or `-` for standard input."""

    name = "JSON"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> "JsonValue":
        if isinstance(value, JsonValue):
            return value
        from headwater.processors.json_texts import TooDeep, within_levels  # noqa: PLC0415 (loads more than --help needs)

        text, where = self._text(str(value), param, ctx)
        try:
            value = json.loads(within_levels(text))
            # Python reads and writes what is not JSON: NaN, 1e400, lone surrogates.
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except TooDeep:
            self.fail(f"expected JSON{where}, found too many levels", param, ctx)
        except ValueError as error:
            hint = "" if where else "; in a shell, put it in single quotes"
            self.fail(f"expected JSON{where}, found {text[:60]!r}: {error}{hint}", param, ctx)
        return JsonValue(value)

    def _text(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the text, and its origin for error messages."""
        try:
            if value == "-":
                return click.get_text_stream("stdin", encoding="utf-8").read(), " on standard input"
            if value.startswith("@"):
                return Path(value[1:]).read_text(encoding="utf-8"), f" in {value[1:]}"
        except OSError as error:
            self.fail(f"expected to read {value}, found: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"expected {value} to be UTF-8", param, ctx)
        return value, ""


class JsonValue:
    """A JSON value; distinguishes null from no value."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401 (any JSON)
        self.value = value
