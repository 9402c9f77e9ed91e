"""What commands and events are made of: their two kinds of struct, and the values within them.

Values of authors (params, results, payloads) are JSON text, never looked into. All are structs,
because building a frozen dataclass costs microseconds.
"""

from typing import Final, TypeAlias

import msgspec

#: JSON text, as an author's code gave it.
Json: TypeAlias = str
#: Levels of lists and objects in a value, its own included. JSON of services has a few, and parsers
#: give up at some hundred, each at another.
NESTING_MAX: Final = 128


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value within a record."""


class Tagged(msgspec.Struct, frozen=True, tag=True, tag_field="_", array_like=True, gc=False):
    """A value that says what it is, for where there are several."""


class Limits(Part, frozen=True):
    """What names and values of workflows may not exceed; each is the setting of its name.

    What comes from outside is held to those of today. What a run's own code does is held to those
    that the run began with, so that a setting that changes changes no replay.
    """

    #: Characters of the name of a workflow.
    max_workflow_name: int = 64
    #: Characters of the id of an instance.
    max_instance_id: int = 100
    #: Characters of the type of an event.
    max_event_type: int = 100
    #: Characters of the name of an entry.
    max_step_name: int = 256
    #: Bytes of JSON that an instance is created with.
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


class Failure(Part, frozen=True):
    """An error as data."""

    #: The error's class.
    name: str
    #: What it says.
    message: str
    #: JSON text, for errors that carry more than a message, such as a join's.
    detail: Json | None = None


class Parent(Part, frozen=True):
    """Whose entry a child instance belongs to."""

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
    """The instance whose outbox a command comes from, and its number there."""

    #: The sender's workflow.
    workflow: str
    #: The sender.
    instance_id: str
    #: The sender's run.
    run_number: int
    #: The post's number in the sender's outbox.
    number: int


class Label(Part, frozen=True):
    """A text by which an instance is found."""

    #: Its name, unique in the instance.
    name: str
    #: What it says.
    value: str


class Once(Part, frozen=True):
    """A caller's key for what is to be done once, however often it is asked for."""

    #: The key, as the caller chose it; before it, and a space, what tells callers apart.
    key: str
    #: The digest of what was asked for under it.
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
    """What runs were made from: a definition, or a deployment."""

    #: Its name.
    name: str
    #: Its version.
    version: str
    #: The digest of its content.
    digest: str
