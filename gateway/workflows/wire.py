"""Answers as they go over HTTP: the type of a wait is spelled in camel case there."""

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
    """Describes the types of entries as answers have them."""

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
        shown = [each.value for each in EntryKind if each not in {EntryKind.WAIT, EntryKind.NOW}]
        return Schema(type=OpenAPIType.STRING, enum=[*shown, WAIT_OVER_HTTP.value])


def encode(found: Answer) -> bytes:
    """An answer as JSON."""
    return msgspec.json.encode(_spelled(found))


def _spelled(found: Answer) -> Answer:
    match found:
        case CurrentStep():
            return _step(found)
        case HistoryPage():
            return msgspec.structs.replace(found, steps=[_step(each) for each in found.steps])
        case Instance():
            return msgspec.structs.replace(found, meta=_standing(found.meta))
        case InstancePage():
            instances = [_standing(each) for each in found.instances]
            return msgspec.structs.replace(found, instances=instances)
        case _:
            return found


def _standing(found: S) -> S:
    """Something that stands at a step, perhaps."""
    step = found.current_step
    return found if step is None else msgspec.structs.replace(found, current_step=_step(step))


def _step(step: C) -> C:
    if step.type is not EntryKind.WAIT:
        return step
    return msgspec.structs.replace(step, type=WAIT_OVER_HTTP)
