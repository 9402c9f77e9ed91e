"""Which version of each schema may be written: the newest that all members of the house read.

Each member announces what it reads; one of them, of whatever release, finds what is common. So
all of this is plain data by the names of schemas, and a name that a member does not announce is a
schema that it cannot read: nobody writes it until that member is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.installed_tables import SCHEMA_IDS


class Announcement(msgspec.Struct, frozen=True):
    """What a member of the house reads: the newest version of each schema, by name."""

    member: str = ""
    reads: dict[str, int] = {}


class Form(msgspec.Struct, frozen=True):
    """The version of a schema to write; behind is a member that reads no newer one, if any."""

    version: int
    behind: str = ""


def _versions() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for version in SCHEMA_IDS:
        name, _, number = version.rpartition(".")
        found.setdefault(name, []).append(int(number))
    return found


#: The newest version of each schema that this release reads, and writes if all others read it.
READS: Final = {name: max(numbers) for name, numbers in _versions().items()}
NEWEST_FORMS: Final = {name: Form(version) for name, version in READS.items()}
#: What every release reads; to be written as long as nothing is known of the others.
OLDEST_FORMS: Final = {
    name: Form(min(numbers), "a member that is not known yet" if len(numbers) > 1 else "")
    for name, numbers in _versions().items()
}


def common(announcements: Sequence[Announcement]) -> dict[str, Form]:
    """The newest version of each schema that all members read."""
    forms: dict[str, Form] = {}
    for name in {name for each in announcements for name in each.reads}:
        read = [(each.reads.get(name, 0), each.member) for each in announcements]
        (least, member), most = min(read), max(read)[0]
        forms[name] = Form(least, member if least < most else "")
    return forms


def announced(data: bytes) -> Announcement:
    """Reads an announcement; what cannot be read announces nothing."""
    try:
        return msgspec.json.decode(data, type=Announcement)
    except PARSE_ERRORS:
        return Announcement(member="a member that announces nothing")


def read_forms(data: bytes) -> Mapping[str, Form] | None:
    """Reads what is common; None if it cannot be read."""
    try:
        return msgspec.json.decode(data, type=dict[str, Form])
    except PARSE_ERRORS:
        return None
