"""Projection of API keys, planned without access to Postgres."""

from functools import partial
from typing import Final

import msgspec

from headwater.projections.projector.projection import (
    LogRecord,
    Projection,
    RowStatement,
    one_by_one,
    payload,
)
from headwater.schemas.api_keys import ApiKeyCreated, ApiKeyRevoked, ApiKeyRotated, ApiKeyUsed
from headwater.schemas.codec import read_api_key_record
from headwater.schemas.topics import API_KEYS as TOPIC

_STATEMENTS: Final = {
    ApiKeyCreated: "create_api_key",
    ApiKeyRotated: "rotate_api_key",
    ApiKeyRevoked: "revoke_api_key",
    ApiKeyUsed: "use_api_key",
}


def _statement(log_record: LogRecord) -> RowStatement:
    record = read_api_key_record(log_record.value)
    row = msgspec.structs.asdict(record) | {"offset": log_record.offset}
    # Rows do not have it: who reads Postgres needs no digests.
    row.pop("digest", None)
    return RowStatement(_STATEMENTS[type(record)], payload([row]))


#: Projects the API keys.
API_KEYS: Final = Projection(
    name="api_keys",
    group="headwater-api-key-projector",
    topics=(TOPIC,),
    plan=partial(one_by_one, statement_of=_statement),
)
