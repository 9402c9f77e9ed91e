"""The definition of a graph, as its author wrote it in one document, read with all its type errors.

A document is read completely or rejected. This module checks the types of fields; `validation`
checks whether the parts agree.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
from typing_extensions import override

from headwater.processors.runs.limits import WAIT_DEFAULT_MS


def mistakes(data: object, kind: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (a type)
    """Yield the path and message of every type error in `data`; nothing if it is of this kind.

    If parts are wrong, only they are reported, not the whole that contains them.
    """
    try:
        msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, _ = str(error).partition(" - at `")
        own_error = (path.lstrip(".") or "$", message[:1].lower() + message[1:])
        yield from list(_within(data, kind, path)) or (own_error,)


def _within(data: object, kind: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 (a type)
    for choice in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        holds = get_origin(choice) or choice
        if isinstance(data, dict) and issubclass(holds, msgspec.Struct):
            yield from _of_fields(data, holds, path)
        elif isinstance(data, dict) and holds is dict:
            for key, value in data.items():
                yield from mistakes(value, get_args(choice)[1], f"{path}.{key}")
        elif isinstance(data, list | tuple) and holds is tuple:
            for index, value in enumerate(data):
                yield from mistakes(value, get_args(choice)[0], f"{path}[{index}]")


def _of_fields(
    data: dict[str, object], part: type[msgspec.Struct], path: str
) -> Iterator[tuple[str, str]]:
    known = {field.encode_name: field for field in msgspec.structs.fields(part)}
    location = path.lstrip(".") or "$"
    for name, field in known.items():
        if name in data:
            yield from mistakes(data[name], field.type, f"{path}.{name}")
        elif field.required:
            yield location, f"expected the field {name!r}, found none"
    for name in data:
        if name not in known:
            yield location, f"expected one of the fields {', '.join(known)}, found {name!r:.80}"


# -- definitions

#: Codes of problems in a definition.
INVALID_DEFINITION: Final = "INVALID_DEFINITION"
DUPLICATE_NODE_REF: Final = "DUPLICATE_NODE_REF"
DUPLICATE_TRANSITION_REF: Final = "DUPLICATE_TRANSITION_REF"
INVALID_NODE_REF: Final = "INVALID_NODE_REF"
INVALID_SIBLING_GROUP: Final = "INVALID_SIBLING_GROUP"
INVALID_STRATEGY: Final = "INVALID_STRATEGY"
INVALID_EXPRESSION: Final = "INVALID_EXPRESSION"
INVALID_TARGET: Final = "INVALID_TARGET"
MISSING_OWNER: Final = "MISSING_OWNER"
MULTIPLE_OWNERS: Final = "MULTIPLE_OWNERS"

#: Ends of a node that transitions follow.
ON_SUCCESS: Final = "success"
ON_ERROR: Final = "error"


class _Part(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A part of a definition, with camel-case keys and without unknown keys."""


P = TypeVar("P", bound=_Part)


class NodeRetries(_Part, frozen=True, kw_only=True):
    """How often and after which delay a task is retried."""

    limit: int
    delay: str | int | float = "10 seconds"
    backoff: str = "exponential"


class Wait(_Part, frozen=True, kw_only=True):
    """A wait for a time: for so long, or until what an expression returns."""

    duration_ms: int | None = None
    until: str | None = None


class AwaitedEvent(_Part, frozen=True, kw_only=True):
    """A wait for the next event of a type."""

    type: str
    timeout_ms: int = WAIT_DEFAULT_MS


class Node(_Part, frozen=True, kw_only=True):
    """A step of a graph: a task, a subworkflow, a wait or an event."""

    ref: str
    task: str | None = None
    subworkflow: str | None = None
    wait: Wait | None = None
    event: AwaitedEvent | None = None
    external: bool = False
    input_mapping: dict[str, str] = {}
    output_mapping: dict[str, str] = {}
    retries: NodeRetries | None = None
    timeout_ms: int | None = None
    join: str = "each"

    @property
    def owner(self) -> str:
        """What the node runs or waits for, as a short text."""
        if self.event is not None:
            return f"event {self.event.type}"
        if self.wait is not None:
            until = self.wait.until
            return f"wait {self.wait.duration_ms} ms" if until is None else f"wait until {until}"
        return self.task or self.subworkflow or ""


class Foreach(_Part, frozen=True, kw_only=True):
    """One branch per item of a collection."""

    collection: str
    item_var: str
    on_empty: str | None = None


class Merge(_Part, frozen=True, kw_only=True):
    """How the outputs of branches are merged."""

    source: str
    target: str
    strategy: str


class Synchronization(_Part, frozen=True, kw_only=True):
    """A join of the branches of a group."""

    strategy: str
    sibling_group: str
    timeout_ms: int | None = None
    on_timeout: str = "fail"
    on_branch_failure: str = "fail"
    merge: Merge | None = None


class LoopConfig(_Part, frozen=True, kw_only=True):
    """How often a token may take a transition."""

    max_iterations: int


class Transition(_Part, frozen=True, kw_only=True):
    """A transition from one node to another."""

    ref: str
    from_node_ref: str
    to_node_ref: str
    priority: int = 0
    #: The end of the node that it follows: success or error.
    on: str = ON_SUCCESS
    condition: str | None = None
    spawn_count: int | None = None
    sibling_group: str | None = None
    foreach: Foreach | None = None
    synchronization: Synchronization | None = None
    loop_config: LoopConfig | None = None

    @property
    def forks(self) -> bool:
        """Whether branches begin at this transition."""
        return (
            self.sibling_group is not None
            or self.foreach is not None
            or (self.spawn_count is not None and self.spawn_count > 1)
        )


class Definition(_Part, frozen=True, kw_only=True):
    """A graph.

    Attributes:
        timeout_ms: How long a run may take.
        on_dead_end: What happens where no transition matches: complete or fail.
    """

    name: str
    initial_node_ref: str
    nodes: tuple[Node, ...]
    transitions: tuple[Transition, ...] = ()
    input_schema: dict[str, Any] | None = None
    context_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    output_mapping: dict[str, str] = {}
    timeout_ms: int | None = None
    on_dead_end: str = "complete"


class Problem(msgspec.Struct, frozen=True):
    """A problem in a definition, and its path."""

    code: str
    path: str
    message: str


class DefinitionInvalid(ValueError):
    """A definition that is not valid; `problems` lists everything that is wrong."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = (
            f"{problem.code} at {problem.path}: {problem.message}" for problem in self.problems
        )
        super().__init__("\n".join(lines))

    @override
    def __reduce__(self) -> tuple[type["DefinitionInvalid"], tuple[tuple[Problem, ...]]]:
        """Keep the problems when the exception is sent to another process."""
        return DefinitionInvalid, (self.problems,)


def read_definition(data: Mapping[str, Any] | bytes | str) -> Definition:
    """Read a definition from a document or its JSON.

    Raises:
        DefinitionInvalid: One or more fields have the wrong type.
    """
    if isinstance(data, (bytes, str)):
        try:
            data = msgspec.json.decode(data)
        except RecursionError:
            problem = Problem(INVALID_DEFINITION, "$", "expected JSON, found it nested too deeply")
            raise DefinitionInvalid([problem]) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problem = Problem(INVALID_DEFINITION, "$", f"expected JSON, found: {error}")
            raise DefinitionInvalid([problem]) from None
    return read_part(data, Definition)


def read_part(data: object, part: type[P], path: str = "") -> P:
    """Read a part of a definition by itself. Paths of problems begin with `path`.

    Raises:
        DefinitionInvalid: One or more fields have the wrong type.
    """
    try:
        return msgspec.convert(data, part)
    except (msgspec.ValidationError, RecursionError):
        problems = mistakes(data, part, path)
        raise DefinitionInvalid(
            Problem(INVALID_DEFINITION, where, message) for where, message in problems
        ) from None


def to_dict(definition: Definition) -> dict[str, Any]:
    """Return the document of a definition, without fields that have their default."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(definition))
    return document


def digest(definition: Definition) -> str:
    """Return the digest of a definition's content.

    It is the hexadecimal SHA-256 of its document with sorted keys and without spaces.
    """
    text = json.dumps(
        to_dict(definition),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
