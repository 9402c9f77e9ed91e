"""Check of the Host header, against DNS rebinding.

A web page whose name resolves to a loopback address (DNS rebinding) could call this gateway as its
own server, and the keys of development are public. Its requests still carry its name in the Host
header. Deliveries are exempt: they are signed, and arrive through tunnels of any name.
"""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from litestar.types import Scope

from headwater.gateway.settings.loopback import is_loopback


def hosts_known(listening: str, allowed: Iterable[str]) -> Callable[[Scope], bool]:
    """Return a predicate: does the Host header of a request name this gateway?

    Args:
        listening: Host that the gateway listens on.
        allowed: Further names, without ports. If the gateway does not listen on loopback and none
            is set, any name is accepted.
    """
    names = frozenset(name.lower() for name in (listening, *allowed))
    any_name = not is_loopback(listening) and len(names) == 1

    def is_known(scope: Scope) -> bool:
        name = _name(scope)
        return any_name or name in names or is_loopback(name)

    return is_known


def _name(scope: Scope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""
