"""Whether the params of an instance are those that its workflow takes, before it is created."""

from functools import lru_cache
from typing import Final

import msgspec

from headwater.processors.json_schemas import JsonSchema
from headwater.processors.json_texts import within_levels
from headwater.schemas.history import Json

#: Compiled schemas that are kept: those of all workflows that most workers will ever have.
_COMPILED_MAX: Final = 1_024


def params_fault(schema: Json | None, params: Json) -> str | None:
    """What is wrong with params, with the path of each fault; None without a schema.

    Errors: SchemaInvalid.
    """
    if schema is None:
        return None
    try:
        value = msgspec.json.decode(within_levels(params))
    except ValueError as error:
        # Numbers of any length are JSON; what reads it here has its bounds.
        return f"params that cannot be read: {error}"
    return _compiled(schema).fault(value, "params")


@lru_cache(_COMPILED_MAX)
def _compiled(schema: Json) -> JsonSchema:
    return JsonSchema(msgspec.json.decode(schema))
