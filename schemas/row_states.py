"""The state of a row besides its columns, as a JSON text with sorted names.

Equal states have equal texts, so a row does not change when its deliveries come in another order.
"""

from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, UndecodableRecord
from headwater.schemas.records import Stamp
from headwater.schemas.tables import Part, RowState, Value

_Stamp: TypeAlias = tuple[int, int, int, str, int, int, int]
_Part: TypeAlias = tuple[dict[str, Value], _Stamp, _Stamp | None]
_State: TypeAlias = tuple[_Stamp | None, dict[str, _Part], dict[str, tuple[Value, _Stamp]]]

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(_State).decode


def encode_state(state: RowState) -> str:
    """Return the text of a state."""
    parts = {
        name: (part.values, _fields(part.stamp), part.replaced and _fields(part.replaced))
        for name, part in state.parts.items()
    }
    shadowed = {name: (value, _fields(stamp)) for name, (value, stamp) in state.shadowed.items()}
    return _encode((state.deleted and _fields(state.deleted), parts, shadowed)).decode()


def decode_state(text: str) -> RowState:
    """Return the state of a text.

    Raises:
        UndecodableRecord: It is no such text.
    """
    try:
        deleted, parts, shadowed = _decode(text)
    except PARSE_ERRORS as error:
        raise UndecodableRecord(f"expected the state of a row, found: {error}") from error
    return RowState(
        deleted and Stamp(*deleted),
        {
            name: Part(values, Stamp(*stamp), replaced and Stamp(*replaced))
            for name, (values, stamp, replaced) in parts.items()
        },
        {name: (value, Stamp(*stamp)) for name, (value, stamp) in shadowed.items()},
    )


def _fields(stamp: Stamp) -> _Stamp:
    return msgspec.structs.astuple(stamp)
