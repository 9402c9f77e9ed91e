"""Check of published topics in tests: outside of a test, the record would wait for its topic."""

from collections.abc import Collection

import msgspec

from headwater.processors.code.host_messages import FromHost
from headwater.processors.runs.host_messages import Requested
from headwater.processors.runs.requests import StepRaised, StepReturned
from headwater.schemas.history import Failure


def check_topics(message: FromHost, topics: Collection[str] | None) -> FromHost:
    """Return the message, or a failure of its step if it publishes to a topic not in `topics`."""
    returned = message.request if isinstance(message, Requested) else None
    if topics is None or not isinstance(returned, StepReturned) or returned.rollback:
        return message
    unknown = [post.topic for post in returned.posts if post.topic and post.topic not in topics]
    if not unknown:
        return message
    failure = Failure(
        "TopicNotFound",
        f"expected one of the topics of this test, {', '.join(sorted(topics)) or 'none'}, found "
        f"{unknown[0]!r}; outside of tests the record would wait until there is such a topic",
    )
    raised = StepRaised(returned.step, returned.attempt, failure, returned.policy, retryable=False)
    return msgspec.structs.replace(message, request=raised)
