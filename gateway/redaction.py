"""Passwords in addresses of servers: what may be shown of an address."""

import re
from typing import Final
from urllib.parse import unquote

_HIDDEN: Final = "(secret)"
#: The parameters of libpq that are secrets.
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret"})

#: user:password@ of a URL. What is no part of a password unless encoded may be in it all the same,
#: so everything up to the last @ is hidden.
_ACCOUNT: Final = re.compile(r"(?P<before>(?:^|://)[^:/?#@=\s]*):(?!//).*@")
_PARAMETER: Final = re.compile(r"(?P<before>[?&])(?P<name>[^=&#]+)=[^&#]*")
#: name=value of libpq's other form, where spaces may stand around = and quotes around the value.
_NAMED: Final = re.compile(r"(?P<name>\w+)\s*=\s*(?:'(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)")


def redacted(address: str) -> str:
    """An address, or several, without the secrets in it.

    Shape:  a URL, or names and values as libpq takes them; anything else comes back as it is.
    """
    shown = _ACCOUNT.sub(rf"\g<before>:{_HIDDEN}@", address)
    if "://" in shown:
        return _PARAMETER.sub(_parameter, shown)
    return _NAMED.sub(_named, shown)


def _parameter(found: re.Match[str]) -> str:
    if unquote(found["name"]) not in _SECRET:
        return found[0]
    return f"{found['before']}{found['name']}={_HIDDEN}"


def _named(found: re.Match[str]) -> str:
    return f"{found['name']}={_HIDDEN}" if found["name"] in _SECRET else found[0]
