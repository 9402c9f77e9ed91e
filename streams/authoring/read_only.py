"""Values that refuse changes: what a workflow is given of the outside.

A step that changed its run's payload would not run again on replay: there the code would see the
payload as it was, and might do something else. Lists and dicts refuse changes, also those within
objects; whether an object's own fields can be set is for its class to say.
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
        # Copies may be changed, also those by `copy`.
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
    """The same value, refusing changes; of objects what their fields hold, in place."""
    kind: type = type(value)
    if kind is str or kind is int:
        return value
    if kind is dict:
        return ReadOnlyDict({key: frozen(each) for key, each in value.items()})
    if kind is list:
        return ReadOnlyList([frozen(each) for each in value])
    if kind is set:
        return frozenset(value)
    if isinstance(value, tuple):
        items = [frozen(each) for each in value]
        # A NamedTuple is made of its fields.
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
    """The names of an object's fields. Members of an Enum are not the payload's own."""
    if issubclass(kind, Enum):
        return ()
    if is_model(kind):
        return attributes_of(kind)
    attributes = getattr(kind, "__attrs_attrs__", ())
    return (
        *getattr(kind, "__struct_fields__", ()),
        *getattr(kind, "__dataclass_fields__", ()),
        *(each.name for each in attributes),
    )
