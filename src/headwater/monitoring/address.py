"""Addresses where processes answer monitors."""

from typing import NamedTuple

from typing_extensions import override


class Address(NamedTuple):
    """An address to listen on; port 0 takes a free one."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
