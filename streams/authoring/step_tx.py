"""The transaction of a step: effects that are applied together with its result."""

import json
import math
import threading
from collections.abc import Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from headwater.processors.code.errors import UnserialisableError
from headwater.processors.queue_messages import (
    DELIVERY,
    QueueMessage,
    delivery_of,
    headers_problem,
    queue_name_problem,
)
from headwater.processors.runs.durations import Duration, milliseconds_of
from headwater.processors.runs.limits import (
    DAY_MS,
    DEFAULT_LIMITS,
    POSTS_BYTES_MAX,
    POSTS_MAX,
    checked_labels,
    name_problem,
)
from headwater.schemas.history import Json, Limits, Post, SendEvent, StartRun
from headwater.schemas.topics import author_topic_problem
from headwater.streams.authoring.values import check_utf8, encode, encode_object, encode_params
from headwater.streams.authoring.workflow_values import Named, name_of


def sql_parameters(params: Any) -> Json:  # noqa: ANN401, it is an author's
    """Return the parameters of a statement as a JSON list or object.

    Args:
        params: A list or a tuple, in the order of the `%s` in the statement, or a dict with the
            values of `%(name)s`. A value is JSON, a date or time, a Decimal or a UUID.

    Raises:
        TypeError: `params` is neither, or a value has another type.
        ValueError: A text contains NUL, which Postgres cannot store, or a number is not finite,
            which JSON cannot represent.
    """
    if isinstance(params, Mapping):
        named: Any = dict(params)
        wrong = [name for name in named if not isinstance(name, str)]
        if wrong:
            raise TypeError(f"expected names of SQL parameters as text, found {wrong[0]!r:.80}")
        values = list(named.values())
    elif isinstance(params, list | tuple):
        named = values = list(params)
    else:
        raise TypeError(
            "expected SQL parameters as a list or a tuple for %s, or as a dict for %(name)s, found "
            f"{type(params).__name__}: {params!r:.80}"
        )
    for value in values:
        _check_parameter(value)
    return json.dumps(named, default=_as_text)


def _check_parameter(value: object) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _check_parameter(item)
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(
            f"expected texts without NUL as SQL parameters, found {value!r:.80}: Postgres has no "
            "such texts"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"expected finite numbers as SQL parameters, found {value}: use None, or the text of "
            "the number and a cast"
        )


def _as_text(value: object) -> str:
    if isinstance(value, datetime | date | Decimal | UUID):
        return str(value)
    raise TypeError(
        f"expected SQL parameters that are JSON, dates, Decimal or UUID, "
        f"found {type(value).__name__}"
    )


# -- the transaction


class StepTx:
    """Effects of a step that are applied together with its result, or not at all if it fails.

    The methods only buffer. The effects are applied when the result is recorded.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, publishes: Collection[str] | None = None
    ) -> None:
        self._limits = limits
        #: Topics that the workflow declares; None if it declares none.
        self._publishes = publishes
        self.posts: list[Post] = []
        self.statements: list[tuple[str, Json]] = []
        self._bytes = 0
        self._abandoned = threading.Event()
        self._closed = False

    def cancelled(self, wait_s: float = 0) -> bool:
        """Return whether this attempt was abandoned: timed out, lost a race, or its run ended.

        A callback that is not async keeps running in its thread until it returns; its result and
        effects are then ignored.

        Args:
            wait_s: Longest time to wait for the attempt to be abandoned, in seconds.
        """
        if not isinstance(wait_s, int | float):
            raise TypeError(f"expected the seconds as a number, found {wait_s!r:.80}")
        return self._abandoned.wait(wait_s)

    def abandon(self) -> None:
        """Mark the attempt as abandoned. For the runner of the callback only."""
        self._abandoned.set()

    def close(self) -> None:
        """Refuse further effects. The runner of the callback calls it when that has returned."""
        self._closed = True

    def publish(self, topic: str, key: str | None, value: Any) -> None:  # noqa: ANN401
        """Publish a record to a Kafka topic; the value is JSON."""
        check_utf8("the name of a topic", topic)
        problem = author_topic_problem(topic) or self._undeclared(topic)
        if problem:
            raise ValueError(problem)
        if key is not None:
            check_utf8("the key of a record", key)
        text = encode(value, "a published value")
        self._post(Post(0, topic=topic, key=key, value=text), topic, key or "", text)

    def execute(self, sql: str, params: Any = ()) -> None:  # noqa: ANN401
        """Run SQL in the step's Postgres transaction.

        Args:
            sql: One statement. `%s` is a parameter of a list, `%(name)s` one of a dict.
            params: A list or a tuple, or a dict.

        Raises:
            TypeError: An argument or a parameter has another type.
            ValueError: A text contains NUL, or a number is not finite.
        """
        if not isinstance(sql, str):
            raise TypeError(f"expected SQL as text, found {type(sql).__name__}")
        check_utf8("SQL", sql)
        if "\0" in sql:
            raise ValueError(f"expected SQL without NUL, found {sql!r:.120}")
        self._check_open("a statement")
        self.statements.append((sql, sql_parameters(params)))

    def create_workflow(
        self,
        name: str | Named,
        *,
        id: str,  # noqa: A002, the name of the contract
        params: Any = None,  # noqa: ANN401
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Create an instance. An existing one is left unchanged."""
        name = name_of(name)
        self._check_address(name, id)
        params_text = encode_params(params, name, self._limits.max_params_bytes)
        start = StartRun(params_text, labels=checked_labels(labels))
        self._post(Post(0, name, id, start), params_text)

    def send_event(
        self,
        workflow: str | Named,
        id: str,  # noqa: A002, the name of the contract
        type: str,  # noqa: A002, the name of the contract
        payload: Any = None,  # noqa: ANN401
    ) -> None:
        """Send an event. It is dropped if the instance does not exist or has ended."""
        workflow = name_of(workflow)
        limits = self._limits
        self._check_address(workflow, id)
        _check("an event type", type, limits.max_event_type, "max_event_type")
        most = limits.max_event_bytes
        text = encode_object(payload, "an event's payload", most, "max_event_bytes")
        self._post(Post(0, workflow, id, SendEvent("", type, text)), text)

    def enqueue(
        self,
        queue: str,
        message: Any = None,  # noqa: ANN401, any JSON
        *,
        delay: Duration = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a message to a queue, which a rule or the workflow of its name receives.

        Args:
            queue: Name of the queue.
            message: Any JSON.
            delay: Time from the end of the step until the message is delivered.
            headers: Headers, for rules.

        Raises:
            TypeError, ValueError: An argument is invalid.
            UnserialisableError: The message is not JSON.
        """
        check_utf8("the name of a queue", queue)
        problem = queue_name_problem(queue) or headers_problem(headers or {})
        if problem:
            raise ValueError(problem)
        text = encode_object(
            message, "a message", self._limits.max_params_bytes, "max_params_bytes"
        )
        delay_ms = milliseconds_of("the delay of a message", delay)
        if delay_ms > self._limits.max_sleep_days * DAY_MS:
            raise ValueError(
                f"expected a delay of at most {self._limits.max_sleep_days} days "
                f"(max_sleep_days), found {delay!r}"
            )
        body = msgspec.Raw(text.encode())
        queued = QueueMessage(
            queue=queue, body=body, delay_ms=delay_ms, headers=dict(headers or {})
        )
        self._post(Post(0, DELIVERY, "", delivery_of(queued)), text)

    def _undeclared(self, topic: str) -> str | None:
        if self._publishes is None or topic in self._publishes:
            return None
        return (
            "expected one of the topics that the workflow declares, publishes="
            f"{sorted(self._publishes)}, found {topic!r}"
        )

    def _check_address(self, workflow: str, instance_id: str) -> None:
        limits = self._limits
        _check("the name of a workflow", workflow, limits.max_workflow_name, "max_workflow_name")
        _check("an instance id", instance_id, limits.max_instance_id, "max_instance_id")

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise RuntimeError(
                f"expected {what} while the callback of the step runs, found it after the "
                "callback returned: do everything within the callback, and await calls that do"
            )

    def _post(self, post: Post, *texts: str) -> None:
        self._check_open("a record or command")
        self._bytes += sum(len(text.encode()) for text in texts)
        count = len(self.posts) + 1
        if self._bytes > POSTS_BYTES_MAX or count > POSTS_MAX:
            raise UnserialisableError(
                f"expected a step to send at most {POSTS_MAX} records and commands, of "
                f"{POSTS_BYTES_MAX} bytes together, found {count} of {self._bytes} bytes; send "
                "them from several steps, or store large data elsewhere and send a reference to it"
            )
        self.posts.append(post)


def _check(what: str, name: str, longest: int, setting: str) -> None:
    problem = name_problem(what, name, longest, setting)
    if problem:
        raise ValueError(problem)
