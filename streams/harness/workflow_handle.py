"""Handles of workflows in tests, which create instances as a client does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic

from typing_extensions import override

from headwater.processors.runs.limits import BATCH_MAX, VALUE_BYTES_TOP, name_problem
from headwater.schemas.failures import INSTANCE_EXISTS, INVALID_INSTANCE_ID, is_refused, refused
from headwater.schemas.history import StartRun
from headwater.streams.authoring.batches import parse_batch
from headwater.streams.authoring.request_arguments import checked_instance_id, checked_labels
from headwater.streams.authoring.values import encode_params
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, name_of
from headwater.streams.harness.instance_handle import Harness, TestInstance


class TestWorkflow(Generic[P_contra, R_co]):
    """A workflow in a test.

    TestWorkflow[P, R] takes P and returns R.
    """

    __test__ = False

    def __init__(self, harness: Harness, workflow: str | Named) -> None:
        self._harness = harness
        self._declared = workflow
        self.name = name_of(workflow)

    @override
    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def get(self, id: str) -> TestInstance[R_co]:  # noqa: A002, the name of the contract
        """Return an existing instance.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        self._harness.views(self.name, id)
        return self._handle(id)

    async def create(
        self,
        id: str | None = None,  # noqa: A002, the name of the contract
        params: P_contra | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> TestInstance[R_co]:
        """Create an instance. It runs when the test advances.

        Raises:
            CommandRefusedError: The creation was refused: InstanceExistsError,
                WorkflowNotFoundError, InvalidInstanceIdError, InvalidLabelsError or
                WorkflowParamsInvalidError.
            UnserialisableError: The params cannot be encoded.
        """
        instance_id = self._harness.new_id("inst") if id is None else checked_instance_id(id)
        reply = await self._harness.send(self.name, instance_id, self._start(params, labels or {}))
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)
        return self._handle(instance_id)

    async def create_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[TestInstance[R_co]]:
        """Create instances, skipping ids that exist, and return the handles of the created ones.

        A server accepts 100 at a time. If it would refuse one of these, for example because of an
        invalid id, none of them is created.

        Raises:
            CommandRefusedError: As for `create`. Instances that were created before stay.
            ValueError: The batch is not a list of {"id": …}.
        """
        new = [
            (instance.id, self._start(instance.params, instance.labels))
            for instance in parse_batch(batch)
        ]
        created: list[TestInstance[R_co]] = []
        for first in range(0, len(new), BATCH_MAX):
            created += await self._create_some(new[first : first + BATCH_MAX])
        return created

    async def _create_some(self, new: Sequence[tuple[str, StartRun]]) -> list[TestInstance[R_co]]:
        longest = self._harness.limits.max_instance_id
        for instance_id, _ in new:
            problem = name_problem("an instance id", instance_id, longest, "max_instance_id")
            if problem:
                raise refused(INVALID_INSTANCE_ID, problem)
        # Of several with the same id, only the first is created.
        replies = [(id_, await self._harness.send(self.name, id_, start)) for id_, start in new]
        for _, reply in replies:
            if is_refused(reply.code) and reply.code != INSTANCE_EXISTS:
                raise refused(reply.code, reply.message)
        created = [id_ for id_, reply in replies if not is_refused(reply.code)]
        return [self._handle(id_) for id_ in created]

    def _handle(self, instance_id: str) -> TestInstance[R_co]:
        return TestInstance(self._harness, self.name, instance_id, self._declared)

    def _start(self, params: object, labels: object) -> StartRun:
        text = encode_params(params, self.name, VALUE_BYTES_TOP)
        return StartRun(text, labels=checked_labels(labels))
