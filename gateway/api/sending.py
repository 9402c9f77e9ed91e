"""Send commands to workflows on behalf of a request."""

from collections.abc import Sequence

from headwater.gateway.api.problems import Problem
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import ReplySent
from headwater.streams.workflows.client import Addressed, Commands


async def send_all(commands: Commands, addressed: Sequence[Addressed]) -> list[ReplySent]:
    """Send commands; return a reply for each.

    Raises:
        Problem: Kafka is not connected, or did not acknowledge.
        OutcomeUnknown: No reply arrived in time.
        Overloaded: Too many commands wait.
        NotYetReadable: Some members run a release that cannot read a command.
    """
    if not commands.ready:
        raise Problem("broker_unavailable", "Kafka is not connected; nothing was sent")
    try:
        return await commands.send_many(addressed)
    except BrokerUnavailable as error:
        raise Problem(
            "broker_unavailable",
            f"{error.message}; the command may have been sent, and may still be executed",
        ) from error
