"""Settings of run ownership: whether workers or hosts of remote apps execute runs."""

from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings

#: The World of app hosts while workers execute their runs.
EXPECTED_WORLD: Final = "headwater/world-remote"


class OwnershipSettings(BaseSettings):
    """Which process executes runs, and how violations are reported."""

    remote_mode: bool = Field(
        default=True,
        description="Whether workers execute all runs: a callback of a queue to the gateway, as to "
        "an app host, is then unexpected.",
    )
    strict_ownership: bool = Field(
        default=True,
        description="Whether unexpected callbacks, and another World than expected, are a failure "
        "rather than a warning.",
    )
    target_world: str = Field(
        default=EXPECTED_WORLD,
        min_length=1,
        max_length=200,
        description="The World that app hosts are configured with, by its name.",
    )
