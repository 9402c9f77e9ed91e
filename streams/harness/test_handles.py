"""Workflows under test: creating instances of one, with its types, as a client does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic

from typing_extensions import override

from headwater.processors.runs.limits import BATCH_MAX, VALUE_BYTES_TOP, name_fault
from headwater.schemas.failures import INSTANCE_EXISTS, INVALID_INSTANCE_ID, is_refused, refused
from headwater.schemas.history import StartRun
from headwater.streams.authoring.batches import parse_batch
from headwater.streams.authoring.request_arguments import checked_instance_id, checked_labels
from headwater.streams.authoring.values import encode_params
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, name_of
from headwater.streams.harness.test_instance import TestInstance, World


class TestWorkflow(Generic[P_contra, R_co]):
    """A workflow under test.

    Shape:  TestWorkflow[P, R] is one that takes P and returns R.
    """

    __test__ = False

    def __init__(self, world: World, workflow: str | Named) -> None:
        self._world = world
        self._declared = workflow
        self.name = name_of(workflow)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> TestInstance[R_co]:  # noqa: A002, the name of the contract
        """An instance that exists.

        Errors: InstanceNotFoundError.
        """
        self._world.views(self.name, id)
        return self._handle(id)

    async def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[R_co]:
        """Creates an instance; it runs when the test lets it.

        Errors: InstanceExistsError, WorkflowNotFoundError, InvalidInstanceIdError,
                InvalidLabelsError, WorkflowParamsInvalidError; UnserialisableError.
        """
        instance_id = self._world.new_id("inst") if id is None else checked_instance_id(id)
        reply = await self._world.send(self.name, instance_id, self._start(params, labels or {}))
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)
        return self._handle(instance_id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[TestInstance[R_co]]:
        """Create instances; those whose id exists are skipped, and left out of the answer.

        A server takes 100 at a time. What it refuses of these, such as an id that breaks the rules,
        is refused before any of them is created.

        Raises:
            CommandRefusedError: As `create`; instances that were created before stay.
            ValueError: The batch is no list of {"id": …}.
        """
        new = [(each.id, self._start(each.params, each.labels)) for each in parse_batch(batch)]
        created: list[TestInstance[R_co]] = []
        for first in range(0, len(new), BATCH_MAX):
            created += await self._create_some(new[first : first + BATCH_MAX])
        return created

    async def _create_some(self, new: Sequence[tuple[str, StartRun]]) -> list[TestInstance[R_co]]:
        longest = self._world.limits.max_instance_id
        for instance_id, _ in new:
            fault = name_fault("an instance id", instance_id, longest, "max_instance_id")
            if fault:
                raise refused(INVALID_INSTANCE_ID, fault)
        # The first of several with one id; the others exist by then.
        replies = [(id_, await self._world.send(self.name, id_, start)) for id_, start in new]
        for _, reply in replies:
            if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
                raise refused(reply.code, reply.message)
        made = [id_ for id_, reply in replies if not is_refused(reply.code)]
        return [self._handle(id_) for id_ in made]

    def _handle(self, instance_id: str) -> TestInstance[R_co]:
        return TestInstance(self._world, self.name, instance_id, self._declared)

    def _start(self, params: object, labels: object) -> StartRun:
        text = encode_params(params, self.name, VALUE_BYTES_TOP)
        return StartRun(text, labels=checked_labels(labels))
