"""Patterns of valid texts, with descriptions for error messages."""

from collections.abc import Mapping
from typing import Final

#: End of a text; in Python `$` alone also matches before a final line break.
_END: Final = r"$(?!\n)"
#: Names of workflows, tasks, instances and types of events.
NAME: Final = f"^[a-zA-Z0-9_][a-zA-Z0-9_-]*{_END}"
KEY: Final = f"^[!-~]+{_END}"
WEARABLE: Final = f"^[A-Za-z0-9_]{{1,64}}{_END}"
LABEL: Final = "^[a-zA-Z0-9._-]{1,100}$"
LABEL_OR_NONE: Final = "^[a-zA-Z0-9._-]{0,100}$"
#: Beginning of the name of a topic, up to a separator, so that no two projects share a name. Kafka
#: keeps names that begin with __ to itself.
TOPIC_PREFIX: Final = "^([a-zA-Z0-9][a-zA-Z0-9._-]{0,98}[._-])?$"
#: A name that needs no quotes. Headwater appends up to ten characters; Postgres allows 63.
SCHEMA: Final = "^[a-z_][a-z0-9_]{0,52}$"
#: The schema of the project that shares its database with no other.
DEFAULT_SCHEMA: Final = "headwater"
HOOKS: Final = r"^([^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*)?$"
JWKS: Final = r"^(https?://\S+|[^:]*)$"
ISSUER_OR_NONE: Final = r"^(https?://[^\s/?#]+[^\s?#]*)?$"
TERRA_API: Final = r"^https?://[^\s/]+(/[^\s?#]*)?$"
FORM_FIELD: Final = r"^[A-Za-z0-9_\-]+$"
URL_OR_NONE: Final = r"^(https?://[^\s?#]*[^\s?#/])?$"
URL_OR_PATH: Final = r"^(https?://[^\s/?#]+)?/[^\s?#]*$"

_VISIBLE: Final = "characters of ASCII without spaces"
#: Descriptions of the patterns, to complete `expected …, found …`.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    NAME: "a name out of a-z, A-Z, 0-9, _ and -, not beginning with -",
    KEY: _VISIBLE,
    WEARABLE: "1 to 64 characters out of a-z, A-Z, 0-9 and _",
    LABEL: "1 to 100 characters out of a-z, A-Z, 0-9, ., _ and -",
    LABEL_OR_NONE: "at most 100 characters out of a-z, A-Z, 0-9, ., _ and -",
    TOPIC_PREFIX: "nothing, or at most 100 characters out of a-z, A-Z, 0-9, ., _ and -, beginning "
    "with a letter or a digit and ending with ., _ or -",
    SCHEMA: "the name of a schema: 1 to 53 characters out of a-z, 0-9 and _, beginning with a "
    "letter or _",
    HOOKS: "package.module:attribute",
    JWKS: "an http:// or https:// URL, or a file",
    TERRA_API: "an http:// or https:// URL without ? and #",
    ISSUER_OR_NONE: "an http:// or https:// URL without ? and #",
    FORM_FIELD: "characters out of a-z, A-Z, 0-9, _ and -",
    URL_OR_NONE: "an http:// or https:// URL without ? and #, not ending with /",
    URL_OR_PATH: "a path that begins with /, or an http:// or https:// URL, without ? and #",
}


def with_descriptions(message: str) -> str:
    """Replace patterns in a message of msgspec with their descriptions."""
    for pattern, description in DESCRIPTIONS.items():
        message = message.replace(
            f"Expected `str` matching regex {pattern!r}", f"expected {description}"
        )
    return message
