"""Base structs of commands and events, and the values within them.

Values of authors (params, results, payloads) are JSON text and are not parsed. All are structs,
because creating a frozen dataclass takes microseconds.
"""

from typing import Final, TypeAlias

import msgspec

#: JSON text from an author's code.
Json: TypeAlias = str
#: Levels of lists and objects in a value, including its own. JSON of services has a few, and
#: parsers stop at some hundred, at different depths.
NESTING_MAX: Final = 128


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value within a record."""


class Tagged(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """A tagged value, for unions."""


class Limits(Part, frozen=True):
    """Limits of workflows; each is the setting of its name.

    Input from outside is checked against the current limits. A run's own code is checked against
    the limits at its start, so that a changed setting changes no replay.
    """

    #: Characters of the name of a workflow.
    max_workflow_name: int = 64
    #: Characters of the id of an instance.
    max_instance_id: int = 100
    #: Characters of the type of an event.
    max_event_type: int = 100
    #: Characters of the name of an entry.
    max_step_name: int = 256
    #: Bytes of JSON of an instance's params.
    max_params_bytes: int = 1024 * 1024
    #: Bytes of JSON of an event's payload.
    max_event_bytes: int = 1024 * 1024
    #: Bytes of JSON of a result, an output, or the state of a loop.
    max_result_bytes: int = 1024 * 1024
    #: Characters of a log line's message.
    max_log_message: int = 2_048
    #: Characters of a log line's category.
    max_log_category: int = 64
    #: Bytes of JSON of a log line's data.
    max_log_data_bytes: int = 1024 * 1024
    #: Days that a sleep may last.
    max_sleep_days: int = 365
    #: Tokens that a run of a graph may create.
    max_tokens: int = 100_000
    #: Instances that may be nested in one another, the outermost included.
    max_depth: int = 32
    #: Visits of one node by a token and its ancestors.
    max_rounds: int = 10_000


class Failure(Part, frozen=True):
    """An error as data."""

    #: The error's class.
    name: str
    #: The error's message.
    message: str
    #: JSON text, for errors that have more than a message, such as a join's.
    detail: Json | None = None


class Parent(Part, frozen=True):
    """The entry of a parent instance that a child instance belongs to."""

    #: The parent's workflow.
    workflow: str
    #: The parent.
    instance_id: str
    #: The parent's run.
    run_number: int
    #: The entry in that run.
    key: str


class Child(Part, frozen=True):
    """The instance that an entry of kind `child` started."""

    #: The child's workflow.
    workflow: str
    #: The child.
    instance_id: str


class Sender(Part, frozen=True):
    """The instance that sent a command from its outbox, and the number of its post."""

    #: The sender's workflow.
    workflow: str
    #: The sender.
    instance_id: str
    #: The sender's run.
    run_number: int
    #: The post's number in the sender's outbox.
    number: int


class Label(Part, frozen=True):
    """A text by which instances are queried."""

    #: Its name, unique in the instance.
    name: str
    #: Its text.
    value: str


class Once(Part, frozen=True):
    """A client's idempotency key."""

    #: The key as the client chose it, after a space and a prefix that identifies the client.
    key: str
    #: The digest of the request.
    digest: str


class Attempt(Part, frozen=True):
    """An attempt of the task of a graph's token."""

    #: The run.
    run_number: int
    #: The token.
    token: int
    #: The attempt; the first is 1.
    number: int


class Artifact(Part, frozen=True):
    """The definition or deployment that runs were created from."""

    #: Its name.
    name: str
    #: Its version.
    version: str
    #: The digest of its content.
    digest: str


#: Deployment of the runs that started on the code of `--app`.
APP: Final = Artifact("app", "", "")


def is_of_app(deployment: Artifact | None) -> bool:
    """Return whether a run may use the code of `--app`: it is on that, or follows the code."""
    return deployment is None or deployment.name == APP.name
