"""Determine the client address of a request, directly or from a trusted proxy.

Limits apply per address, and refusals name it. A client is one IPv4 address or one IPv6 /64.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple, TypeAlias

from litestar.types import Scope

Network: TypeAlias = IPv4Network | IPv6Network

_FORWARDED: Final = b"x-forwarded-for"
_NETWORK_BITS: Final = 64
#: Size of the cache of parsed addresses.
_CACHED: Final = 4096
#: The peer of a request over a transport without addresses.
_UNKNOWN: Final = "unknown"


class _Address(NamedTuple):
    peer: str
    trusted: bool


def peer_resolver(proxies: Iterable[Network]) -> Callable[[Scope], str]:
    """Return a function that determines the client address of a request.

    The function returns the address of the connection. If that is a trusted proxy, it returns the
    last address in X-Forwarded-For that is not a trusted proxy. The header is ignored on
    connections from other addresses.

    Args:
        proxies: Networks of trusted proxies.
    """
    parse = lru_cache(_CACHED)(partial(_parse, tuple(proxies)))

    def peer_of(scope: Scope) -> str:
        client = scope.get("client")
        address = parse(client[0]) if client else None
        if address is None:
            return _UNKNOWN
        if not address.trusted:
            return address.peer
        for text in reversed(_forwarded(scope)):
            previous = parse(text.strip())
            address = previous or address
            if previous is None or not address.trusted:
                break
        return address.peer

    return peer_of


def _parse(proxies: tuple[Network, ...], text: str) -> _Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    trusted = any(address in network for network in proxies)
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return _Address(str(IPv6Network((address, _NETWORK_BITS), strict=False)), trusted)
    return _Address(str(address), trusted)


def _forwarded(scope: Scope) -> list[str]:
    values = [value for name, value in scope["headers"] if name == _FORWARDED]
    return b",".join(values).decode("latin-1").split(",")
