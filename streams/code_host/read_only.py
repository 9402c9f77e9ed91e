"""Values that refuse changes: what a workflow is given of the outside.

A step that changed its run's payload would not run again on replay: there the code would see the
payload as it was, and might do something else. Objects keep their type, for `isinstance`, equality
and JSON; copies of them may be changed.
"""

import contextlib
import functools
import typing
from enum import Enum
from typing import Any, Final, NoReturn

import msgspec
from typing_extensions import override

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def _read_only(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "the payload of a workflow or an event is read-only, because the next replay would not see "
        "the change; copy it first"
    )


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes. Calls of its type, as in `dataclasses.asdict`, give copies."""

    def __new__(cls, *items: Any, **more: Any) -> dict[str, Any]:  # type: ignore[misc] # noqa: ANN401
        """A dict that may be changed."""
        return dict(*items, **more)

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _read_only
    __ior__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # Copies may be changed, also those by `copy`.
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that refuses changes. Calls of its type, as in `dataclasses.asdict`, give copies."""

    def __new__(cls, *items: Any) -> list[Any]:  # type: ignore[misc] # noqa: ANN401
        """A list that may be changed."""
        return list(*items)

    __setitem__ = __delitem__ = append = clear = extend = insert = pop = _read_only
    remove = reverse = sort = _read_only
    __iadd__ = __imul__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class ReadOnlySet(set[Any]):
    """A set that refuses changes."""

    add = clear = discard = pop = remove = update = _read_only
    difference_update = intersection_update = symmetric_difference_update = _read_only
    __iand__ = __ior__ = __isub__ = __ixor__ = _read_only

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return set, (set(self),)


def frozen(value: Any) -> Any:  # noqa: ANN401, any JSON value, or what it was converted to
    """The same value, refusing changes.

    Shape:  JSON, sets, tuples, dataclasses, attrs classes and Structs. Objects are not copied.
    """
    return _frozen(value, set())


def _frozen(value: Any, seen: set[int]) -> Any:  # noqa: ANN401
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        made = dict.__new__(ReadOnlyDict)
        dict.update(made, {key: _frozen(each, seen) for key, each in value.items()})
        return made
    if kind is list:
        items = list.__new__(ReadOnlyList)
        list.extend(items, [_frozen(each, seen) for each in value])
        return items
    if kind is set:
        return ReadOnlySet(value)
    if isinstance(value, tuple):
        each_frozen = tuple(_frozen(each, seen) for each in value)
        return kind(*each_frozen) if hasattr(kind, "_fields") else each_frozen
    fields = _fields(kind)  # type: ignore[arg-type] # a class can be hashed
    # What links to itself is met again.
    if fields and id(value) not in seen:
        seen.add(id(value))
        _freeze(value, fields, seen)
    return value


@functools.lru_cache(maxsize=1_000)
def _fields(kind: type) -> tuple[str, ...]:
    """The names of an object's fields. Members of an Enum are not the payload's own."""
    if issubclass(kind, Enum):
        return ()
    attributes = getattr(kind, "__attrs_attrs__", ())
    return (
        *getattr(kind, "__struct_fields__", ()),
        *getattr(kind, "__dataclass_fields__", ()),
        *(each.name for each in attributes),
    )


def _freeze(value: Any, fields: tuple[str, ...], seen: set[int]) -> None:  # noqa: ANN401
    is_struct = isinstance(value, msgspec.Struct)
    change = msgspec.structs.force_setattr if is_struct else object.__setattr__
    for name in fields:
        before = getattr(value, name, None)
        after = _frozen(before, seen)
        if after is not before:
            change(value, name, after)
    kind = _read_only_kind(type(value))  # type: ignore[arg-type] # a class can be hashed
    if kind is not None:
        # Classes of an unusual layout stay as they are.
        with contextlib.suppress(TypeError):
            setter = msgspec.Struct.__setattr__ if is_struct else object.__setattr__
            setter(value, "__class__", kind)


@functools.lru_cache(maxsize=1_000)
def _read_only_kind(kind: type) -> type | None:
    """A subclass that refuses to have its attributes set, and passes for the class itself.

    Shape:  None for a class that refuses by itself, and for one that does something when a class is
            derived from it.
    """
    config = getattr(kind, "__struct_config__", getattr(kind, "__dataclass_params__", None))
    derives = any(
        "__init_subclass__" in vars(each)
        for each in kind.__mro__
        if each not in (object, typing.Generic, typing.Protocol)
    )
    if getattr(config, "frozen", False) or derives:
        return None

    def plain(value: Any, protocol: Any = 2) -> tuple[Any, ...]:  # noqa: ANN401
        # As copyreg has it: a function, its arguments, and perhaps a state.
        reduced: Any = kind.__reduce_ex__(value, protocol)  # type: ignore[call-arg]
        make, arguments, *rest = reduced
        return (
            kind if make is made else make,
            tuple(kind if each is made else each for each in arguments),
            *rest,
        )

    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__class__": property(lambda _: kind),
        "__setattr__": _read_only,
        "__delattr__": _read_only,
        "__reduce_ex__": plain,
    }
    if hasattr(kind, "__attrs_attrs__"):
        # Where msgspec looks for it, which does not look at bases.
        names["__attrs_attrs__"] = kind.__attrs_attrs__
    if issubclass(kind, msgspec.Struct):
        names |= _names_of_struct(kind)
    else:
        names["__slots__"] = ()
    made: type
    try:
        made = type(kind)(kind.__name__, (kind,), names)
    except TypeError:
        return None
    return made


def _names_of_struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Structs copy and compare themselves by their type, which here is another."""

    def copied(value: msgspec.Struct) -> Any:  # noqa: ANN401
        reduced: Any = value.__reduce_ex__(2)
        make, arguments, *_ = reduced
        return make(*arguments)

    def equal(value: msgspec.Struct, other: object) -> bool:
        same = other if type(other) is kind else copied(other) if isinstance(other, kind) else None
        return bool(copied(value) == same)

    names: dict[str, Any] = {"__copy__": copied}
    if kind.__struct_config__.eq:
        names |= {"__eq__": equal, "__hash__": kind.__hash__}
    return names
