"""How a stand-in is set up."""

from dataclasses import dataclass
from pathlib import Path

from headwater.gateway.terra_stand_in.people import Person


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """What it is, where it posts, and what it makes up.

    Shape:  target is where it posts, url where it is found itself; file keeps what it knows, None
            for a life without memory; lab_field is the form field in which it takes lab reports.
            Where `data` is false, requests for data are answered, and no data is posted.
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
