"""Validate the params of an instance against its workflow's schema, before it is created."""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Final

import msgspec

from headwater.processors.evaluations import Evaluations
from headwater.processors.input_texts import JsonInvalid, read_json
from headwater.processors.json_schemas import JsonSchema
from headwater.schemas.history import Json

#: Compiled schemas that are cached: enough for all workflows of most workers.
_COMPILED_MAX: Final = 1_024
#: With all of its hyphens, or without any.
_UUID: Final = re.compile(
    "[0-9a-fA-F]{32}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", re.ASCII
)

#: As pydantic writes 400 days, P1Y35D. The types of other libraries have a pattern without years.
_WITH_YEARS: Final = re.compile(
    r"[+-]?P(?:\d{1,7}Y)?(?:\d{1,7}M)?(?:\d{1,8}W)?(?:\d{1,8}D)?"
    r"(?:T(?:\d{1,8}H)?(?:\d{1,8}M)?(?:\d{1,8}(?:\.\d{1,9})?S)?)?(?<![PT])",
    re.ASCII,
)


def _is_read_as(kind: type, text: str) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _is_duration(text: str) -> bool:
    return _is_read_as(timedelta, text) or _WITH_YEARS.fullmatch(text) is not None


def _any_text(_text: str) -> bool:
    return True


#: The formats that params have to match: values that the same library parses later.
#: A date-time may have no offset, as types have a pattern for that. Other formats of JSON Schema
#: are annotations, including those that the validator knows: their readers may be more lenient.
FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    **dict.fromkeys(
        (
            *("email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "regex"),
            *("uri", "uri-reference", "iri", "iri-reference", "uri-template"),
            *("json-pointer", "relative-json-pointer"),
        ),
        _any_text,
    ),
    "date-time": partial(_is_read_as, datetime),
    "date": partial(_is_read_as, date),
    "time": partial(_is_read_as, time),
    "duration": _is_duration,
    "uuid": _is_uuid,
    "decimal": partial(_is_read_as, Decimal),
    "base64": partial(_is_read_as, bytes),
}


def params_problem(
    schema: Json | None, params: Json, evaluations: Evaluations | None = None
) -> str | None:
    """Return what is wrong with params, with the path of every problem; None without a schema.

    Raises:
        SchemaInvalid: The schema is invalid.
    """
    if schema is None:
        return None
    try:
        value = read_json(params)
    except JsonInvalid as error:
        # JSON has numbers of any length; the reader has limits.
        return f"params that cannot be read: {error}"
    return _compiled(schema).problem(value, "params", evaluations)


@lru_cache(_COMPILED_MAX)
def _compiled(schema: Json) -> JsonSchema:
    return JsonSchema(msgspec.json.decode(schema), FORMATS)
