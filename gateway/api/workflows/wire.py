"""Encoding of responses for HTTP, where the type of a wait is in camel case."""

from typing import Any, TypeVar

import msgspec
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.plugins import OpenAPISchemaPlugin
from litestar.typing import FieldDefinition
from typing_extensions import override

from headwater.schemas.answers import (
    Answer,
    CurrentStep,
    HistoryPage,
    Instance,
    InstanceFound,
    InstanceMeta,
    InstancePage,
)
from headwater.schemas.statuses import WAIT_OVER_HTTP, EntryKind

C = TypeVar("C", bound=CurrentStep)
S = TypeVar("S", InstanceMeta, InstanceFound)


class StepTypes(OpenAPISchemaPlugin):
    """OpenAPI schema of entry types as responses encode them."""

    @staticmethod
    @override
    def is_plugin_supported_type(value: Any) -> bool:
        return value is EntryKind

    @override
    def to_openapi_schema(
        self,
        field_definition: FieldDefinition,
        schema_creator: Any,
    ) -> Schema:
        del field_definition, schema_creator
        shown = [kind.value for kind in EntryKind if kind not in {EntryKind.WAIT, EntryKind.NOW}]
        return Schema(type=OpenAPIType.STRING, enum=[*shown, WAIT_OVER_HTTP.value])


def encode(response: Answer) -> bytes:
    """Encode a response as JSON."""
    return msgspec.json.encode(_in_http_spelling(response))


def _in_http_spelling(response: Answer) -> Answer:
    match response:
        case CurrentStep():
            return _step(response)
        case HistoryPage():
            return msgspec.structs.replace(response, steps=[_step(step) for step in response.steps])
        case Instance():
            return msgspec.structs.replace(response, meta=_with_step(response.meta))
        case InstancePage():
            instances = [_with_step(instance) for instance in response.instances]
            return msgspec.structs.replace(response, instances=instances)
        case _:
            return response


def _with_step(row: S) -> S:
    """Convert the current step of a row, if it has one."""
    step = row.current_step
    return row if step is None else msgspec.structs.replace(row, current_step=_step(step))


def _step(step: C) -> C:
    if step.type is not EntryKind.WAIT:
        return step
    return msgspec.structs.replace(step, type=WAIT_OVER_HTTP)
