"""Tools for language models, one per operation of the gateway's OpenAPI document.

A tool is data: its name, its meaning, the JSON Schema of its arguments, and how they become a
request. The MCP server offers them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from headwater.gateway.client.requests import Query, Repeat, Request, encoded_query, path

#: Tags of routes that take signatures or tokens of users instead of keys.
_NOT_FOR_OPERATORS: Final = frozenset({"webhooks", "users", "hooks"})
#: Routes with answers that have a secret, which a model must not get: a tag, and operations.
_KEYS: Final = "keys"
_WITH_SECRETS: Final = frozenset({"createEndpoint", "rotateEndpoint"})
_JSON: Final = "application/json"
#: Parameters that a model needs not: positions and headers of conditional requests.
_LEFT_OUT: Final = frozenset({"min_position", "Prefer", "last-event-id"})
#: The argument that is the body of a request.
_BODY: Final = "body"
_NAME_LENGTH: Final = 64
_COMPONENTS: Final = "#/components/schemas/"
_DEFINITIONS: Final = "#/$defs/"

Json: TypeAlias = dict[str, Any]
Place: TypeAlias = Literal["path", "query", "header"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """An operation of the API as a tool.

    Attributes:
        title: Its summary, in a few words.
        description: What it does.
        schema: JSON Schema of the arguments, an object.
        method: HTTP method.
        template: Path with `{parameters}`.
        places: Where an argument is sent, by name; the argument `body` is the body.
        schemes: Names of the security schemes that it accepts.
    """

    name: str
    title: str
    description: str
    schema: Json
    method: str
    template: str
    places: Mapping[str, Place]
    schemes: tuple[str, ...]

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"

    def request(self, arguments: Mapping[str, Any]) -> Request:
        """Return the request for valid arguments.

        Raises:
            EmptyName: An argument of the path is empty.
        """
        sent = {name: value for name, value in arguments.items() if value is not None}
        query: Query = {name: v for name, v in sent.items() if self.places.get(name) == "query"}
        headers = {name: str(v) for name, v in sent.items() if self.places.get(name) == "header"}
        body = json.dumps(sent[_BODY]).encode() if _BODY in sent else None
        return Request(
            method=self.method,
            path=path(*self._segments(sent)),
            repeat=Repeat.READ if self.reads else Repeat.UNSAFE,
            query=encoded_query(query),
            headers=headers if body is None else {**headers, "content-type": _JSON},
            body=body,
        )

    def _segments(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        for segment in self.template.strip("/").split("/"):
            name = segment.removeprefix("{").removesuffix("}")
            yield segment if name == segment else str(arguments[name])


def tools_of(document: Json, *, writes: bool) -> dict[str, Tool]:
    """Return the tools for an OpenAPI document, by name.

    Streams, uploads and routes for signed requests or tokens of users have none; nor have routes
    with answers that have a secret.

    Args:
        document: The document, as the gateway serves it.
        writes: Also for operations that change something.
    """
    schemas = document.get("components", {}).get("schemas", {})
    tools = [
        _tool(method.upper(), template, operation, schemas)
        for template, operations in document["paths"].items()
        for method, operation in operations.items()
        if _usable(operation) and (method == "get" or (writes and _may_write(operation)))
    ]
    return {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}


def _usable(operation: Json) -> bool:
    content = operation.get("requestBody", {}).get("content", {_JSON: {}})
    answers = {
        kind
        for answer in operation.get("responses", {}).values()
        for kind in answer.get("content", {})
    }
    return (
        bool(operation.get("security"))
        and _NOT_FOR_OPERATORS.isdisjoint(operation.get("tags", ()))
        and _JSON in content
        and "text/event-stream" not in answers
    )


def _may_write(operation: Json) -> bool:
    has_secret = operation.get("operationId") in _WITH_SECRETS
    return not has_secret and _KEYS not in operation.get("tags", ())


def _tool(method: str, template: str, operation: Json, schemas: Json) -> Tool:
    parameters = [p for p in operation.get("parameters", ()) if p["name"] not in _LEFT_OUT]
    properties = {p["name"]: _described(p) for p in parameters}
    required = [p["name"] for p in parameters if p.get("required")]
    if body := operation.get("requestBody"):
        properties[_BODY] = body["content"][_JSON].get("schema", {})
        required += [_BODY] if body.get("required") else []
    title = operation.get("summary") or f"{method} {template}"
    return Tool(
        name=_name(method, template, operation.get("operationId", "")),
        title=title,
        description="\n\n".join(filter(None, (title, operation.get("description")))),
        schema=_closed(
            {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
            schemas,
        ),
        method=method,
        template=template,
        places={p["name"]: p["in"] for p in parameters},
        schemes=tuple(name for scheme in operation["security"] for name in scheme),
    )


def _described(parameter: Json) -> Json:
    description = {"description": d} if (d := parameter.get("description")) else {}
    return {**parameter.get("schema", {}), **description}


def _name(method: str, template: str, operation_id: str) -> str:
    """Return a name in snake case: that of the operation, or one made from the path.

    An operation that was not named in the document has an id of Litestar's, in Pascal case.
    """
    if operation_id[:1].islower():
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", operation_id).lower()
    else:
        words = "_".join(re.findall(r"\w+", f"{method.lower()} {template}"))
    return words.replace("__", "_")[:_NAME_LENGTH]


def _closed(schema: Json, schemas: Json) -> Json:
    """Return a schema with the components that it refers to as definitions of its own."""
    needed: dict[str, Any] = {}
    pending = [schema]
    while pending:
        for name in _references(pending.pop()):
            if name not in needed:
                needed[name] = schemas[name]
                pending.append(schemas[name])
    whole = {**schema, "$defs": needed} if needed else schema
    renamed: Json = _renamed(whole)
    return renamed


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith(_COMPONENTS):
            yield reference.removeprefix(_COMPONENTS)
        for member in value.values():
            yield from _references(member)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _renamed(value: Any) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(value, dict):
        return {
            name: member.replace(_COMPONENTS, _DEFINITIONS)
            if name == "$ref" and isinstance(member, str)
            else _renamed(member)
            for name, member in value.items()
        }
    return [_renamed(item) for item in value] if isinstance(value, list) else value
