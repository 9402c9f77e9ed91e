"""Workflows by keys of a program's own: what a program holds that starts and steers them."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Protocol, overload

from headwater.schemas.answers import InstanceStatus
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, WorkflowOf, name_of


class BoundInstance(Protocol[R_co]):
    """An instance, of a server or under test."""

    @property
    def id(self) -> str:
        """Its id."""

    def status(self) -> Awaitable[InstanceStatus]:
        """How it stands."""

    def result(self) -> Awaitable[R_co]:
        """Its output, once it has ended."""

    def send_event(self, type: str, payload: Any = None) -> Awaitable[object]:  # noqa: A002, ANN401
        """Sends an event."""

    def pause(self) -> Awaitable[object]:
        """Pauses it."""

    def resume(self) -> Awaitable[object]:
        """Lets it go on."""

    def restart(self) -> Awaitable[object]:
        """Begins a new run."""

    def terminate(self) -> Awaitable[object]:
        """Ends it for good."""


class BoundWorkflow(Protocol[P_contra, R_co]):
    """A workflow, of a server or under test."""

    def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> Awaitable[BoundInstance[R_co]]:
        """Creates an instance."""

    def create_batch(
        self, batch: Iterable[Mapping[str, Any]]
    ) -> Awaitable[Iterable[BoundInstance[R_co]]]:
        """Creates instances; those that exist are left out."""

    def get(self, id: str) -> BoundInstance[R_co]:  # noqa: A002, the name of the contract
        """The handle of an instance."""


class Service(Protocol):
    """Where workflows run: a `Client`, or a `WorkflowTest`."""

    def workflow(self, workflow: str | Named, /) -> BoundWorkflow[Any, Any]:
        """A workflow."""


class Workflows:
    """The workflows of a program, by keys of its own.

    A program is given them, and does not know whether a server or a test runs them. A key is an
    attribute; a workflow itself is an index, and what that gives has its types.

        workflows = Workflows({"BILLING": billing}, client)
        await workflows.BILLING.create(id="order-1", params={"order": "order-1"})
        await workflows[billing].get("order-1").result()
    """

    def __init__(self, workflows: Mapping[str, str | Named], service: Service) -> None:
        """Binds workflows, given themselves or by their names, to keys.

        Errors: ValueError for a key that is no name of an attribute, or begins with _; TypeError
                for what is no workflow.
        """
        wrong = [key for key in workflows if not key.isidentifier() or key.startswith("_")]
        if wrong:
            raise ValueError(f"expected keys such as BILLING, found {wrong[0]!r}")
        self._names = {key: name_of(each) for key, each in workflows.items()}
        self._service = service

    def __getattr__(self, key: str) -> BoundWorkflow[Any, Any]:
        """The workflow of a key."""
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(*error.args) from None

    @overload
    def __getitem__(self, key: WorkflowOf[P_contra, R_co]) -> BoundWorkflow[P_contra, R_co]: ...

    @overload
    def __getitem__(self, key: str | Named) -> BoundWorkflow[Any, Any]: ...

    def __getitem__(self, key: str | Named) -> BoundWorkflow[Any, Any]:
        """The workflow of a key, or one that is bound to any."""
        names = self.__dict__.get("_names", {})
        name = names.get(key) if isinstance(key, str) else name_of(key)
        if name not in names.values():
            raise KeyError(f"expected one of {', '.join(names) or 'no keys'}, found {key}")
        return self._service.workflow(name)

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self._names)
