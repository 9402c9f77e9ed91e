"""Workflows under test: creating instances of one, with its types, as a client does."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic

from typing_extensions import override

from headwater.processors.runs.labels import checked_labels
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused, refused
from headwater.schemas.history import StartRun
from headwater.streams.authoring.batches import batch_of
from headwater.streams.authoring.values import encode_params
from headwater.streams.authoring.workflow_values import P_contra, R_co
from headwater.streams.harness.test_instance import TestInstance, World, instance_id_of


class TestWorkflow(Generic[P_contra, R_co]):
    """A workflow under test.

    Shape:  TestWorkflow[P, R] is one that takes P and returns R.
    """

    __test__ = False

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> TestInstance[R_co]:  # noqa: A002, the name of the contract
        """An instance that exists.

        Errors: InstanceNotFoundError.
        """
        self._world.views(self.name, id)
        return TestInstance(self._world, self.name, id)

    async def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[R_co]:
        """Creates an instance; it runs when the test lets it.

        Errors: InstanceExistsError, WorkflowNotFoundError, InvalidInstanceIdError; ValueError for
                labels that break the rules.
        """
        instance_id = self._world.new_id("inst") if id is None else instance_id_of(id)
        await self._start(instance_id, params, labels)
        return TestInstance(self._world, self.name, instance_id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[TestInstance[R_co]]:
        """Creates instances; those whose id exists are skipped, and left out of the answer."""
        return [
            TestInstance(self._world, self.name, new.id)
            for new in batch_of(batch)
            if await self._start(instance_id_of(new.id), new.params, new.labels, or_exists=True)
        ]

    async def _start(
        self,
        instance_id: str,
        params: object,
        labels: Mapping[str, str] | None,
        *,
        or_exists: bool = False,
    ) -> bool:
        command = StartRun(
            encode_params(params, self.name, VALUE_BYTES_TOP), labels=checked_labels(labels)
        )
        reply = await self._world.send(self.name, instance_id, command)
        if or_exists and reply.code == INSTANCE_EXISTS:
            return False
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)
        return True
