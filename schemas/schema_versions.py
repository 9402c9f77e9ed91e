"""Which version of every schema may be written: the newest that all members of the system read.

Every member announces what it reads; one of them, of any release, computes the common versions. So
all of this is plain data by schema name. A name that a member does not announce is a schema that it
cannot read: it is not written until that member is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.installed_tables import SCHEMA_IDS


class Announcement(msgspec.Struct, frozen=True):
    """What a member reads: the newest version of every schema, by name."""

    member: str = ""
    reads: dict[str, int] = {}


class SchemaVersion(msgspec.Struct, frozen=True):
    """The version of a schema to write, and a member that reads no newer one, if any (`behind`)."""

    version: int
    behind: str = ""


def _versions() -> dict[str, list[int]]:
    versions: dict[str, list[int]] = {}
    for version in SCHEMA_IDS:
        name, _, number = version.rpartition(".")
        versions.setdefault(name, []).append(int(number))
    return versions


#: The newest version of every schema that this release reads, and writes if all others read it.
READABLE_VERSIONS: Final = {name: max(numbers) for name, numbers in _versions().items()}
NEWEST_VERSIONS: Final = {
    name: SchemaVersion(version) for name, version in READABLE_VERSIONS.items()
}
#: Versions that every release reads; to be written while the other members are not known.
OLDEST_VERSIONS: Final = {
    name: SchemaVersion(min(numbers), "a member that is not known yet" if len(numbers) > 1 else "")
    for name, numbers in _versions().items()
}


def common_versions(announcements: Sequence[Announcement]) -> dict[str, SchemaVersion]:
    """Return the newest version of every schema that all members read."""
    versions: dict[str, SchemaVersion] = {}
    names = {name for announcement in announcements for name in announcement.reads}
    for name in names:
        read = [(member.reads.get(name, 0), member.member) for member in announcements]
        (least, member_name), most = min(read), max(read)[0]
        versions[name] = SchemaVersion(least, member_name if least < most else "")
    return versions


def parse_announcement(data: bytes) -> Announcement:
    """Parse an announcement; invalid data announces nothing."""
    try:
        return msgspec.json.decode(data, type=Announcement)
    except PARSE_ERRORS:
        return Announcement(member="a member that announces nothing")


def parse_versions(data: bytes) -> Mapping[str, SchemaVersion] | None:
    """Parse the common versions; None if the data is invalid."""
    try:
        return msgspec.json.decode(data, type=dict[str, SchemaVersion])
    except PARSE_ERRORS:
        return None
