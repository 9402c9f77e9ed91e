"""The Kafka cluster: where its brokers are, and how clients reach them.

Every client of the house is made from this one value.
"""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster.

    Shape:  servers are some of its brokers as host:port, separated by commas; a client learns of
            the others from them.
    """

    servers: str

    def options(self) -> dict[str, Any]:
        """What each client of aiokafka is given."""
        return {"bootstrap_servers": self.servers}

    @override
    def __str__(self) -> str:
        return self.servers
