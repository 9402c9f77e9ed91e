"""The settings of who executes runs: workers, or a host of somebody else's app."""

from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings

#: The World that app hosts have to be set to while workers execute the runs.
EXPECTED_WORLD: Final = "headwater/world-remote"


class OwnershipSettings(BaseSettings):
    """Who executes runs, and how severely it is taken if somebody asks another to."""

    remote_mode: bool = Field(
        default=True,
        description="Whether workers execute all runs: a callback of a queue that comes to the "
        "gateway, as to an app host, is then one that went astray.",
    )
    strict_ownership: bool = Field(
        default=True,
        description="Whether callbacks that went astray, and a World other than expected, are a "
        "failure rather than a warning.",
    )
    target_world: str = Field(
        default=EXPECTED_WORLD,
        min_length=1,
        max_length=200,
        description="The World that app hosts are set to, as they name it.",
    )
