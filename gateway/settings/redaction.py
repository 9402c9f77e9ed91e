"""Redaction of passwords in addresses of servers."""

import re
from typing import Final
from urllib.parse import unquote

_HIDDEN: Final = "(secret)"
#: Parameters of libpq that are secrets.
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret"})

#: user:password@ of a URL. Users may forget to encode characters of a password, so everything up to
#: the last @ is hidden.
_ACCOUNT: Final = re.compile(r"(?P<before>(?:^|://)[^:/?#@=\s]*):(?!//).*@")
_PARAMETER: Final = re.compile(r"(?P<before>[?&])(?P<name>[^=&#]+)=[^&#]*")
#: name=value in libpq's other format, with optional spaces around = and quotes around the value.
_NAMED: Final = re.compile(r"(?P<name>\w+)\s*=\s*(?:'(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)")


def redacted(address: str) -> str:
    """Return an address, or several, without their secrets.

    Args:
        address: A URL, or names and values as libpq accepts them; other texts are not changed.
    """
    shown = _ACCOUNT.sub(rf"\g<before>:{_HIDDEN}@", address)
    if "://" in shown:
        return _PARAMETER.sub(_parameter, shown)
    return _NAMED.sub(_named, shown)


def _parameter(match: re.Match[str]) -> str:
    if unquote(match["name"]) not in _SECRET:
        return match[0]
    return f"{match['before']}{match['name']}={_HIDDEN}"


def _named(match: re.Match[str]) -> str:
    return f"{match['name']}={_HIDDEN}" if match["name"] in _SECRET else match[0]
