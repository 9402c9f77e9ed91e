"""Which names this gateway may be called by: what a page of somebody else's must not choose.

A page whose name is made to resolve to a loopback address (DNS rebinding) would be let in by the
browser as its own server, and the keys of development are known to everybody. Its requests still
bear its name. Deliveries are not asked: they are signed, and come through tunnels of any name.
"""

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from litestar.types import Scope

from headwater.gateway.loopback import is_loopback


def hosts_known(listening: str, allowed: Iterable[str]) -> Callable[[Scope], bool]:
    """Whether a request calls this gateway by one of its names.

    Shape:  names without ports. On loopback those of this machine and the allowed ones; elsewhere
            the allowed ones too, or any name if there are none.
    """
    names = frozenset(name.lower() for name in (listening, *allowed))
    any_name = not is_loopback(listening) and len(names) == 1

    def known(scope: Scope) -> bool:
        name = _name(scope)
        return any_name or name in names or is_loopback(name)

    return known


def _name(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return urlsplit(f"//{given.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""
