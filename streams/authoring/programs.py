"""Workflows of a program, bound to a server or a test, and its clock and randomness."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from random import Random  # noqa: TID251, for tests, from their seed
from secrets import randbits
from typing import Any, Protocol, Self, overload
from uuid import UUID

from headwater.schemas.answers import InstanceStatus
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, WorkflowOf, name_of


def _drawn(bits: int) -> int:
    # A function, because the web framework deep-copies guards, and SystemRandom cannot be copied.
    return randbits(bits)


class Runtime:
    """Clock and random numbers."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        draw_bits: Callable[[int], int] = _drawn,
    ) -> None:
        """Create a runtime.

        Args:
            now_ms: Returns the current time in Unix milliseconds.
            draw_bits: Returns an integer of this many random bits.
        """
        self._now_ms = now_ms
        self._draw_bits = draw_bits

    @classmethod
    def seeded(cls, seed: int = 0, at: str = "2026-01-01T00:00:00Z") -> Self:
        """Return a deterministic runtime for tests: its clock does not advance."""
        moment = round(datetime.fromisoformat(at).timestamp() * 1_000)
        return cls(lambda: moment, Random(seed).getrandbits)  # noqa: S311, no secrets

    def now(self) -> datetime:
        """Return the current time as an aware datetime."""
        return datetime.fromtimestamp(self._now_ms() / 1_000, UTC)

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return self._draw_bits(53) / 2**53

    def uuid(self) -> str:
        """Return a random UUID (version 4)."""
        return str(UUID(int=self._draw_bits(128), version=4))


# -- bound workflows


class BoundInstance(Protocol[R_co]):
    """An instance on a server or in a test."""

    @property
    def id(self) -> str:
        """Instance id."""

    def status(self) -> Awaitable[InstanceStatus]:
        """Return the current status."""

    def result(self) -> Awaitable[R_co]:
        """Wait for the end of the instance and return its output."""

    def send_event(self, type: str, payload: Any = None) -> Awaitable[object]:  # noqa: A002, ANN401
        """Send an event."""

    def pause(self) -> Awaitable[object]:
        """Pause the instance."""

    def resume(self) -> Awaitable[object]:
        """Resume the instance."""

    def restart(self) -> Awaitable[object]:
        """Start a new run."""

    def terminate(self) -> Awaitable[object]:
        """End the instance permanently."""


class BoundWorkflow(Protocol[P_contra, R_co]):
    """A workflow on a server or in a test."""

    def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> Awaitable[BoundInstance[R_co]]:
        """Create an instance."""

    def create_batch(
        self, batch: Iterable[Mapping[str, Any]]
    ) -> Awaitable[Iterable[BoundInstance[R_co]]]:
        """Create instances, skipping those that exist."""

    def get(self, id: str) -> BoundInstance[R_co]:  # noqa: A002, the name of the contract
        """Return the handle of an instance."""


class Service(Protocol):
    """A `Client` or a `WorkflowTest`."""

    def workflow(self, workflow: str | Named, /) -> BoundWorkflow[Any, Any]:
        """Return a workflow."""


class Workflows:
    """The workflows of a program, under its own keys.

    The program receives this object and does not know whether a server or a test runs the
    workflows. A key is available as an attribute; indexing with a workflow object returns a typed
    handle.

        workflows = Workflows({"BILLING": billing}, client)
        await workflows.BILLING.create(id="order-1", params={"order": "order-1"})
        await workflows[billing].get("order-1").result()
    """

    def __init__(self, workflows: Mapping[str, str | Named], service: Service) -> None:
        """Bind workflows, or names of workflows, to keys.

        Raises:
            ValueError: A key is not a valid attribute name, or begins with _.
            TypeError: A value is not a workflow.
        """
        wrong = [key for key in workflows if not key.isidentifier() or key.startswith("_")]
        if wrong:
            raise ValueError(f"expected keys such as BILLING, found {wrong[0]!r}")
        self._names = {key: name_of(workflow) for key, workflow in workflows.items()}
        self._service = service

    def __getattr__(self, key: str) -> BoundWorkflow[Any, Any]:
        """Return the workflow of a key."""
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(*error.args) from None

    @overload
    def __getitem__(self, key: WorkflowOf[P_contra, R_co]) -> BoundWorkflow[P_contra, R_co]: ...

    @overload
    def __getitem__(self, key: str | Named) -> BoundWorkflow[Any, Any]: ...

    def __getitem__(self, key: str | Named) -> BoundWorkflow[Any, Any]:
        """Return the workflow of a key, or a workflow that is bound to some key."""
        names = self.__dict__.get("_names", {})
        name = names.get(key) if isinstance(key, str) else name_of(key)
        if name not in names.values():
            raise KeyError(f"expected one of {', '.join(names) or 'no keys'}, found {key}")
        return self._service.workflow(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._names)
