"""The topics of a test: what a step publishes to any other fails it, as no record would arrive."""

from collections.abc import Collection

import msgspec

from headwater.processors.replay.host_messages import FromHost
from headwater.processors.runs.host_messages import Requested
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.schemas.history import Failure


def checked(message: FromHost, topics: Collection[str] | None) -> FromHost:
    """What a host has sent, or that its step has failed; any topic will do where none are named."""
    returned = message.request if isinstance(message, Requested) else None
    if topics is None or not isinstance(returned, StepReturned) or returned.rollback:
        return message
    unknown = [each.topic for each in returned.posts if each.topic and each.topic not in topics]
    if not unknown:
        return message
    failure = Failure(
        "TopicNotFound",
        f"expected one of the topics of this test, {', '.join(sorted(topics)) or 'none'}, found "
        f"{unknown[0]!r}; outside of tests the record would wait until there is such a topic",
    )
    raised = StepRaised(returned.step, returned.attempt, failure, returned.policy, retryable=False)
    return msgspec.structs.replace(message, request=raised)
