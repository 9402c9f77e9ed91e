"""Configuration of a stand-in."""

from dataclasses import dataclass
from pathlib import Path

from headwater.gateway.local.terra_stand_in.people import Person


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Configuration of a stand-in.

    Attributes:
        target: URL to post deliveries to.
        secret: Secret that signs deliveries.
        url: Own base URL.
        file: SQLite file for the state; None keeps it in memory.
        seed: Determines all generated data.
        data: Whether requested data is posted; if false, requests are only answered.
        widget_path: Path that starts a widget session.
        lab_field: Form field of an uploaded lab report.
        lab_shape: Format of lab reports: `typed`, or the older `untyped`.
        lab_delay_s: Seconds until the results of a lab report are posted.
        people: Connections that exist from the start.
    """

    target: str
    secret: str
    url: str
    file: Path | None = None
    seed: int = 1
    data: bool = True
    widget_path: str = "/auth/generateWidgetSession"
    lab_field: str = "files"
    lab_shape: str = "typed"
    lab_delay_s: float = 1.0
    people: tuple[Person, ...] = ()
