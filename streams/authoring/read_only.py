"""Read-only values, for payloads that a workflow receives.

A step that changed the payload of its run would not be called again on replay, so the code would
then see the original payload and might behave differently. Lists and dicts refuse changes, also
within objects. Whether the fields of an object can be set is decided by its class.
"""

import functools
from enum import Enum
from typing import Any, NoReturn

import msgspec
from typing_extensions import override

from headwater.streams.authoring.pydantic_models import attributes_of, is_model


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "the payload of a workflow or an event is read-only, because the next replay would not see "
        "the change; copy it first"
    )


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes."""

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _read_only
    __ior__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling and `copy` produce mutable values.
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that refuses changes."""

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = _read_only
    remove = reverse = sort = _read_only
    __iadd__ = __imul__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:  # noqa: ANN401, any JSON value, or what it was converted to
    """Return the value with all lists, dicts and sets read-only. Objects are changed in place."""
    kind: type = type(value)
    if kind is str or kind is int:
        return value
    if kind is dict:
        return ReadOnlyDict({key: frozen(item) for key, item in value.items()})
    if kind is list:
        return ReadOnlyList([frozen(item) for item in value])
    if kind is set:
        return frozenset(value)
    if isinstance(value, tuple):
        items = [frozen(item) for item in value]
        # A NamedTuple takes its fields as separate arguments.
        return getattr(kind, "_make", kind)(items)
    change = (
        msgspec.structs.force_setattr if issubclass(kind, msgspec.Struct) else object.__setattr__
    )
    for name in _fields(kind):
        before = getattr(value, name, None)
        after = frozen(before)
        if after is not before:
            change(value, name, after)
    return value


@functools.lru_cache(maxsize=1_000)
def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of an object's fields. Enum members are shared, so they have none here."""
    if issubclass(kind, Enum):
        return ()
    if is_model(kind):
        return attributes_of(kind)
    attributes = getattr(kind, "__attrs_attrs__", ())
    return (
        *getattr(kind, "__struct_fields__", ()),
        *getattr(kind, "__dataclass_fields__", ()),
        *(attribute.name for attribute in attributes),
    )
