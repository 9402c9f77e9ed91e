"""Settings of monitoring: where processes answer monitors, and the auditor."""

import re
from typing import Final

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.monitoring.address import Address

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})")
_PORT_MAX: Final = 65_535


class MonitoringSettings(BaseSettings):
    """Where processes answer monitors, and the auditor."""

    metrics_address: str = Field(
        default="",
        description="Address where a pipeline, a workflow worker or a projector answers GET "
        "/metrics, /health/live and /health/ready, as host:port; 0.0.0.0:9600 in a container. "
        "Several processes use as many ports from it on; port 0 takes a free one; empty answers "
        "nowhere, except for `headwater up`. The gateway answers on its own port.",
    )
    worker_metrics_port: int = Field(
        default=0,
        ge=0,
        le=_PORT_MAX,
        description="For a workflow worker without HEADWATER_METRICS_ADDRESS: the port on "
        "loopback where it answers monitors; 0 for none.",
    )

    auditor: bool = Field(
        default=False,
        description="Whether the projector also runs the auditor; `headwater up` has it.",
    )
    auditor_rows: int = Field(
        default=6,
        ge=0,
        le=100_000,
        description="Rows that the auditor compares in a minute; 0 for none.",
    )

    @field_validator("metrics_address")
    @classmethod
    def _with_port(cls, value: str) -> str:
        if value and _parsed(value) is None:
            raise PydanticCustomError("not_address", "")
        return value

    def monitored_at(self, *, workflows: bool = False) -> Address | None:
        """Return where this process answers monitors, if it does.

        Args:
            workflows: Whether it is a workflow worker.
        """
        if workflows and not self.metrics_address and self.worker_metrics_port:
            return Address("127.0.0.1", self.worker_metrics_port)
        return _parsed(self.metrics_address)

    def monitored_from(self, index: int) -> dict[str, object]:
        """Return these settings for one of several processes, with a port of its own.

        Raises:
            ValueError: There is no such port.
        """
        own: dict[str, object] = {}
        address = _parsed(self.metrics_address)
        if address is not None and address.port:
            own["metrics_address"] = str(address._replace(port=_port(address.port, index)))
        if self.worker_metrics_port:
            own["worker_metrics_port"] = _port(self.worker_metrics_port, index)
        return own


def _port(first: int, index: int) -> int:
    if first + index > _PORT_MAX:
        raise ValueError(f"expected at most {_PORT_MAX - index}, found {first}")
    return first + index


def _parsed(text: str) -> Address | None:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _PORT_MAX:
        return None
    return Address(match[1] or match[2], int(match[3]))
