"""The definition of a graph: what its author wrote, as one document.

It is read whole or not at all. What the types of its fields can tell is told here; whether its
parts agree is the matter of `validation`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from typing_extensions import override

from headwater.processors.graph.mistakes import mistakes

#: Codes of what can be wrong with a definition.
INVALID_DEFINITION: Final = "INVALID_DEFINITION"
DUPLICATE_NODE_REF: Final = "DUPLICATE_NODE_REF"
DUPLICATE_TRANSITION_REF: Final = "DUPLICATE_TRANSITION_REF"
INVALID_NODE_REF: Final = "INVALID_NODE_REF"
INVALID_SIBLING_GROUP: Final = "INVALID_SIBLING_GROUP"
INVALID_STRATEGY: Final = "INVALID_STRATEGY"
INVALID_EXPRESSION: Final = "INVALID_EXPRESSION"
MISSING_OWNER: Final = "MISSING_OWNER"
MULTIPLE_OWNERS: Final = "MULTIPLE_OWNERS"


class _Part(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A part of a definition: named in camel case, and with no key that nobody reads."""


P = TypeVar("P", bound=_Part)


class NodeRetries(_Part, frozen=True, kw_only=True):
    """How often a task is tried again, and after how long."""

    limit: int
    delay: str | int | float = "10 seconds"
    backoff: str = "exponential"


class Node(_Part, frozen=True, kw_only=True):
    """A step of a graph: a task, or a workflow of its own."""

    ref: str
    task: str | None = None
    subworkflow: str | None = None
    external: bool = False
    input_mapping: dict[str, str] = {}
    output_mapping: dict[str, str] = {}
    retries: NodeRetries | None = None
    timeout_ms: int | None = None


class Foreach(_Part, frozen=True, kw_only=True):
    """A branch for each item of a collection."""

    collection: str
    item_var: str
    on_empty: str | None = None


class Merge(_Part, frozen=True, kw_only=True):
    """What becomes of the outputs of branches."""

    source: str
    target: str
    strategy: str


class Synchronization(_Part, frozen=True, kw_only=True):
    """A meeting point of the branches of a group."""

    strategy: str
    sibling_group: str
    timeout_ms: int | None = None
    on_timeout: str = "fail"
    merge: Merge | None = None


class LoopConfig(_Part, frozen=True, kw_only=True):
    """How often a token may come by a transition."""

    max_iterations: int


class Transition(_Part, frozen=True, kw_only=True):
    """A way from a node to a node."""

    ref: str
    from_node_ref: str
    to_node_ref: str
    priority: int = 0
    condition: str | None = None
    spawn_count: int | None = None
    sibling_group: str | None = None
    foreach: Foreach | None = None
    synchronization: Synchronization | None = None
    loop_config: LoopConfig | None = None

    @property
    def forks(self) -> bool:
        """Whether branches begin here."""
        return (
            self.sibling_group is not None
            or self.foreach is not None
            or (self.spawn_count is not None and self.spawn_count > 1)
        )


class Definition(_Part, frozen=True, kw_only=True):
    """A graph."""

    name: str
    initial_node_ref: str
    nodes: tuple[Node, ...]
    transitions: tuple[Transition, ...] = ()
    input_schema: dict[str, Any] | None = None
    context_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    output_mapping: dict[str, str] = {}


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a definition, and where."""

    code: str
    path: str
    message: str


class DefinitionInvalid(ValueError):
    """A definition that contradicts itself; all that is wrong is in `problems`."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = (f"{each.code} at {each.path}: {each.message}" for each in self.problems)
        super().__init__("\n".join(lines))

    @override
    def __reduce__(self) -> tuple[type["DefinitionInvalid"], tuple[tuple[Problem, ...]]]:
        """Its problems survive being sent to another process."""
        return DefinitionInvalid, (self.problems,)


def read_definition(data: Mapping[str, Any] | bytes | str) -> Definition:
    """Reads a definition: a document, or its JSON.

    Errors: DefinitionInvalid, for all fields that are not what they have to be.
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
    """Reads a part of a definition by itself; paths of what is wrong begin with its path.

    Errors: DefinitionInvalid, for all fields that are not what they have to be.
    """
    try:
        return msgspec.convert(data, part)
    except (msgspec.ValidationError, RecursionError):
        found = mistakes(data, part, path)
        raise DefinitionInvalid(Problem(INVALID_DEFINITION, *each) for each in found) from None


def to_dict(definition: Definition) -> dict[str, Any]:
    """The document of a definition: what was left to its default is left out."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(definition))
    return document


def digest(definition: Definition) -> str:
    """The name of a definition by its content.

    Shape:  SHA-256, in hexadecimal, of its document with sorted keys and without spaces.
    """
    text = json.dumps(
        to_dict(definition),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
