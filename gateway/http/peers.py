"""Whose a request is: the address that it comes from, or that a trusted proxy names.

Limits go by address, and refusals name it. One sender has one IPv4 address, or a whole /64 of IPv6.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple, TypeAlias

from litestar.types import Scope

Network: TypeAlias = IPv4Network | IPv6Network

_FORWARDED: Final = b"x-forwarded-for"
_NETWORK_BITS: Final = 64
#: Addresses whose reading is remembered.
_REMEMBERED: Final = 4096
#: The peer of a request over a transport without addresses.
_NOBODY: Final = "unknown"


class _Address(NamedTuple):
    peer: str
    trusted: bool


def peers_behind(proxies: Iterable[Network]) -> Callable[[Scope], str]:
    """How the peer of a request is found.

    Shape:  from the connection's own address; from the last address in X-Forwarded-For that is no
            proxy's if it comes from a proxy. What others say in that header is not believed.
    """
    read = lru_cache(_REMEMBERED)(partial(_read, tuple(proxies)))

    def peer_of(scope: Scope) -> str:
        client = scope.get("client")
        here = read(client[0]) if client else None
        if here is None:
            return _NOBODY
        if not here.trusted:
            return here.peer
        for text in reversed(_forwarded(scope)):
            before = read(text.strip())
            here = before or here
            if before is None or not here.trusted:
                break
        return here.peer

    return peer_of


def _read(proxies: tuple[Network, ...], text: str) -> _Address | None:
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
