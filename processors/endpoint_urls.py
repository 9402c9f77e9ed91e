"""Which URLs notifications may be posted to.

A key that creates endpoints chooses hosts that workers connect to. Without rules, that reaches
services which only the workers' network can reach (server-side request forgery). So addresses have
to be public unless an operator allows their network. They are checked when an endpoint is created,
as far as its URL contains one, and again whenever its host name was resolved.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

URL_CHARS_MAX: Final = 2_000
#: Python raises UnicodeError for a name with a longer label, or an empty one.
_LABEL_CHARS_MAX: Final = 63
_PORTS: Final = {"https": 443, "http": 80}
#: Networks that are refused although Python calls them global: those that contain IPv4 addresses
#: (NAT64, 6to4, Teredo, compatible and translated addresses), site-local ones, and those of
#: segment routing.
_NOT_PUBLIC: Final = (
    *map(IPv6Network, ("64:ff9b::/32", "2002::/16", "2001::/32", "::/96", "::ffff:0:0:0/96")),
    *map(IPv6Network, ("fec0::/10", "5f00::/16")),
)
_LOCAL: Final = "localhost"


class Target(NamedTuple):
    """Parts of a URL that a request needs.

    Attributes:
        host: Host name or address, without brackets.
        authority: Value of the header `Host`.
        path: Path and query.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path: str


def target_of(url: str) -> Target | str:
    """Return the parts of a URL, or what is wrong with it."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return f"expected a URL of at most {URL_CHARS_MAX} visible ASCII characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"expected a URL, found: {error}"
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or port == 0 or not _is_host(host):
        return "expected an https:// URL with a host, and 1 to 63 characters between its dots"
    if parts.username is not None or parts.password is not None:
        return "expected a URL without user and password"
    if parts.fragment:
        return "expected a URL without a fragment (#)"
    query = f"?{parts.query}" if parts.query else ""
    authority = parts.netloc
    return Target(
        parts.scheme, host, port or _PORTS[parts.scheme], authority, (parts.path or "/") + query
    )


def _is_host(host: str) -> bool:
    """Return whether a host is an address, or may be a name."""
    labels = host.removesuffix(".").split(".")
    return ":" in host or all(0 < len(label) <= _LABEL_CHARS_MAX for label in labels)


def url_problem(url: str, allowed: Iterable[Network], *, loopback: bool) -> str | None:
    """Return why no endpoint may have a URL, or None.

    Args:
        url: The URL.
        allowed: Networks that are allowed although they are not public.
        loopback: Whether addresses of this machine are allowed, as in development.
    """
    target = target_of(url)
    if isinstance(target, str):
        return target
    address = literal_address(target.host)
    if address is not None:
        problem = address_problem(address, allowed, loopback=loopback)
        if problem is not None:
            return problem
    elif target.host == _LOCAL and not loopback:
        return "expected a host that others can reach, found localhost"
    if target.scheme == "http" and not _may_be_plain(target.host, address, allowed):
        return (
            "expected https://, found http://, which is accepted for loopback and for addresses of "
            "HEADWATER_ENDPOINT_NETWORKS"
        )
    return None


def literal_address(host: str) -> Address | None:
    """Return the address that a host is, or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """Return whether a URL names this machine itself, rather than a name that resolves to it."""
    address = literal_address(host)
    return host == _LOCAL if address is None else address.is_loopback


def address_problem(address: Address, allowed: Iterable[Network], *, loopback: bool) -> str | None:
    """Return why nothing may be sent to an address, or None."""
    plain = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = plain or address
    if any(address in network for network in allowed if network.version == address.version):
        return None
    if address.is_loopback:
        return None if loopback else f"expected a public address, found loopback: {address}"
    refused = any(address in network for network in _NOT_PUBLIC if isinstance(address, IPv6Address))
    if address.is_global and not address.is_multicast and not refused:
        return None
    return f"expected a public address, or one of HEADWATER_ENDPOINT_NETWORKS, found {address}"


def _may_be_plain(host: str, address: Address | None, allowed: Iterable[Network]) -> bool:
    if address is None:
        return host == _LOCAL
    return address.is_loopback or any(
        address in network for network in allowed if network.version == address.version
    )
