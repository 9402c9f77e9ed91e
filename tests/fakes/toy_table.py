"""A table that nobody needs, declared as one would be."""

import msgspec

from headwater.schemas.tables import JsonText, Moment, TimeColumn, table_of


class ToyBox(msgspec.Struct):
    """A box of a user's toys."""

    #: Our user.
    user_id: str
    #: When it was opened.
    opened_at: Moment
    #: How many toys it holds; the owner's own count.
    toys: int | None = None
    #: True once it is complete.
    complete: bool | None = None
    #: The box as it was sent.
    raw: JsonText | None = None


TOY_BOXES = table_of(
    ToyBox,
    name="toy_boxes",
    topic="toy-boxes",
    times=(
        TimeColumn(
            name="complete_since", column="complete", value=True, doc="When it became complete."
        ),
    ),
)
