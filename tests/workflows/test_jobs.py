"""Jobs in the harness: tasks that workers outside take, and what becomes of late and lost ones."""

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

from headwater import ClientError, GraphWorkflow, TaskInfo, WorkflowTest, task
from headwater.processors.graph.timing import LEASES_LOST_MAX
from headwater.schemas.history import Attempt, CompleteJob
from headwater.streams.harness.handles import TestInstance as Instance
from headwater.streams.harness.job_handle import TestJob as Job
from tests.workflows.graphing import Definition, fan, graph, node, outcome, play, statuses

RETRIES = {"limit": 1, "delay": "10 seconds", "backoff": "constant"}


def one_job(**more: object) -> Definition:
    """A graph whose only node is a job `charge`; its output is the job's."""
    mappings = {"inputMapping": {"n": "input"}, "outputMapping": {"output.r": "result.r"}}
    return graph(
        [node("pay", "charge", external=True, **mappings, **more)],
        [],
        outputMapping={"r": "output.r"},
    )


async def take(test: WorkflowTest, **more: Any) -> Job:  # noqa: ANN401
    (job,) = await test.activate_jobs("charge", **more)
    return job


async def refusal(done: Awaitable[None]) -> str:
    with pytest.raises(ClientError) as caught:
        await done
    return caught.value.code


def test_a_job_waits_until_a_worker_takes_it_and_its_output_goes_on():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        assert await statuses(instance) == ["dispatched"]
        assert await test.activate_jobs("another") == []
        job = await take(test)
        assert (job.input, job.node_ref, job.attempt, job.token_id) == ({"n": 5}, "pay", 1, "0")
        (token,) = (await instance.history()).tokens
        assert (token.status, token.worker) == ("executing", "test")
        assert token.lease_until == token.updated_at + timedelta(minutes=1)
        assert job.lease_until == token.lease_until
        assert await test.activate_jobs("charge") == []
        await job.complete({"r": 7})
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"r": 7}, None)

    play(one_job(), scenario, 5)


def test_jobs_and_tasks_of_one_run_go_on_beside_each_other():
    definition = fan()
    definition["nodes"][1] |= {"external": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        first, second = await test.activate_jobs("work", max=5)
        assert [first.input["item"], second.input["item"]] == [1, 2]
        await second.complete({"n": 20})
        await test.run_until_idle()
        assert (await instance.status()).status == "waiting"
        await first.complete({"n": 10})
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [10, 20]}, None)

    play(definition, scenario, {"items": [1, 2]})


def test_a_job_that_fails_is_tried_again_as_its_node_says_and_then_fails_its_run():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        first = await take(test)
        await first.fail("no", name="CardDeclined")
        assert await test.activate_jobs("charge") == []
        await test.advance("10 seconds")
        second = await take(test)
        assert (second.attempt, second.input) == (2, {"n": 5})
        assert second.idempotency_token == first.idempotency_token
        await second.fail("no again")
        assert await outcome(instance) == ("errored", None, ("Error", "no again"))
        assert await statuses(instance) == ["failed"]

    play(one_job(retries=RETRIES), scenario, 5)


def test_a_worker_says_when_a_job_is_tried_again_and_whether():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await (await take(test)).fail("later", retry_after="1 hour")
        await test.advance("59 minutes")
        assert await test.activate_jobs("charge") == []
        await test.advance("1 minute")
        other = await test.create("g", id="other", params=6)
        await test.run_until_idle()
        mine, theirs = await test.activate_jobs("charge", max=2)
        await mine.complete({"r": 1})
        await theirs.fail("never", retryable=False)
        assert (await outcome(instance))[0] == "complete"
        assert (await outcome(other))[0] == "errored"

    play(one_job(retries=RETRIES), scenario, 5)


def test_a_lease_that_runs_out_gives_the_job_to_the_next_worker_and_costs_no_retry():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        lost = await take(test, lease="10 seconds", worker="gone")
        await test.advance("9 seconds")
        await lost.extend("10 seconds")
        await test.advance("9 seconds")
        assert await test.activate_jobs("charge") == []
        await test.advance("2 seconds")
        (token,) = (await instance.history()).tokens
        assert token.error is not None
        assert (token.status, token.error.name) == ("dispatched", "LeaseExpiredError")
        assert '"gone"' in token.error.message
        assert await refusal(lost.extend()) == "JOB_LEASE_LOST"
        result = await take(test)
        assert (result.attempt, result.idempotency_token) == (2, lost.idempotency_token)
        assert await refusal(lost.complete({"r": 1})) == "JOB_LEASE_LOST"
        assert await refusal(lost.fail("late")) == "JOB_LEASE_LOST"
        await result.complete({"r": 2})
        assert await outcome(instance) == ("complete", {"r": 2}, None)
        assert await refusal(lost.complete({"r": 1})) == "JOB_CANCELLED"

    play(one_job(), scenario, 5)


@pytest.mark.parametrize(
    ("late_ms", "looked", "ends"),
    [
        pytest.param(0, True, True, id="in the last ms"),
        pytest.param(1, False, True, id="a ms late, and read before anybody looks at the time"),
        pytest.param(1, True, False, id="a ms late, behind the end of the lease"),
    ],
)
def test_what_a_worker_and_the_end_of_its_lease_end_at_once_the_worker_ends(
    late_ms: int, looked: bool, ends: bool
):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        job = await take(test, lease="10 seconds")
        test.now_ms += 10_000 + late_ms
        if looked:
            await test.run_until_idle()
        if ends:
            await job.complete({"r": 1})
            assert await outcome(instance) == ("complete", {"r": 1}, None)
        else:
            assert await refusal(job.complete({"r": 1})) == "JOB_LEASE_LOST"
            assert await statuses(instance) == ["dispatched"]

    play(one_job(), scenario, 5)


def test_a_job_that_ends_all_of_its_workers_fails_its_run_at_last():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        for _ in range(LEASES_LOST_MAX):
            await take(test, lease="10 seconds")
            await test.advance("11 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "LeaseExpiredError")
        assert await test.activate_jobs("charge") == []

    play(one_job(retries=RETRIES), scenario, 5)


def test_an_attempt_takes_no_longer_than_its_node_says_however_often_it_is_extended():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        for attempt in (1, 2):
            job = await take(test)
            assert job.attempt == attempt
            await test.advance("4 seconds")
            await job.extend("1 hour")
            await test.advance("2 seconds")
            assert await refusal(job.complete({"r": 1})) in {"JOB_LEASE_LOST", "JOB_CANCELLED"}
            await test.advance("10 seconds")
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "StepTimeoutError")
        assert await statuses(instance) == ["timed_out"]

    play(one_job(retries=RETRIES, timeoutMs=5_000), scenario, 5)


def test_an_end_that_is_told_twice_is_one_and_another_end_is_refused():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        first = await take(test)
        await first.fail("no")
        await first.fail("no")
        assert await refusal(first.fail("something else")) == "JOB_ALREADY_ENDED"
        assert await refusal(first.extend()) == "JOB_ALREADY_ENDED"
        await test.advance("10 seconds")
        second = await take(test)
        await second.complete({"r": 1})
        await second.complete({"r": 1})
        assert await refusal(second.complete({"r": 2})) == "JOB_ALREADY_ENDED"
        assert await refusal(second.fail("no")) == "JOB_ALREADY_ENDED"
        await test.crash()
        await second.complete({"r": 1})
        assert await outcome(instance) == ("complete", {"r": 1}, None)

    play(one_job(retries=RETRIES), scenario, 5)


def test_an_output_that_its_run_cannot_go_on_with_is_taken_and_fails_the_run():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        job = await take(test)
        await job.complete({"r": [1]})
        status, _, error = await outcome(instance)
        assert (status, error and error[0]) == ("errored", "OutputInvalidError")
        await job.complete({"r": [1]})
        assert await refusal(job.complete({"r": 1})) == "JOB_ALREADY_ENDED"

    wants_number = {"type": "object", "properties": {"r": {"type": "number"}}}
    play({**one_job(), "outputSchema": wants_number}, scenario, 5)


def test_a_worker_whose_job_is_no_longer_wanted_is_told_so():
    definition = fan("any")
    definition["nodes"][1] |= {"external": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        first, second = await test.activate_jobs("work", max=2)
        await first.complete({"n": 1})
        await test.run_until_idle()
        assert await refusal(second.complete({"n": 2})) == "JOB_CANCELLED"
        again = await test.create("g", id="again", params={"items": [1]})
        await test.run_until_idle()
        (left,) = await test.activate_jobs("work")
        await again.terminate()
        assert await refusal(left.extend()) == "JOB_CANCELLED"
        await again.restart()
        assert await refusal(left.complete({"n": 1})) == "JOB_CANCELLED"

    play(definition, scenario, {"items": [1, 2]})


def test_a_run_that_is_paused_gives_no_jobs_and_takes_their_results():
    definition = fan()
    definition["nodes"][1] |= {"external": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        (job,) = await test.activate_jobs("work")
        await instance.pause()
        assert await test.activate_jobs("work") == []
        await job.complete({"n": 1})
        await instance.resume()
        await test.run_until_idle()
        (job,) = await test.activate_jobs("work")
        await job.complete({"n": 2})
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [1, 2]}, None)

    play(definition, scenario, {"items": [1, 2]})


def test_leases_and_open_jobs_outlast_a_crash():
    definition = fan()
    definition["nodes"][1] |= {"external": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        (job,) = await test.activate_jobs("work", lease="10 seconds")
        await test.crash()
        (other,) = await test.activate_jobs("work", max=2)
        await other.complete({"n": 2})
        await test.crash()
        await test.advance("11 seconds")
        assert await refusal(job.complete({"n": 1})) == "JOB_LEASE_LOST"
        (again,) = await test.activate_jobs("work", max=2)
        await again.complete({"n": 1})
        await test.run_until_idle()
        assert await outcome(instance) == ("complete", {"all": [1, 2]}, None)

    play(definition, scenario, {"items": [1, 2]})


def test_a_retry_of_a_run_offers_its_job_again_with_the_same_idempotency_token():
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        first = await take(test)
        await first.fail("no")
        assert (await outcome(instance))[0] == "errored"
        await instance.retry()
        await test.run_until_idle()
        second = await take(test)
        assert (second.run_number, second.attempt) == (1, 1)
        assert second.idempotency_token == first.idempotency_token
        await instance.restart()
        await test.run_until_idle()
        assert (await take(test)).idempotency_token != first.idempotency_token

    play(one_job(), scenario, 5)


@pytest.mark.parametrize("output", ["{", '"' + "x" * 1024 * 1024 + '"', "[" * 5_000])
def test_an_output_that_cannot_be_taken_leaves_the_job_with_its_worker(output: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        job = await take(test)
        reply = await test.send("g", "i", CompleteJob(Attempt(0, 0, 1), output))
        assert reply.code == "JOB_OUTPUT_INVALID"
        await job.complete({"r": 1})
        assert (await outcome(instance))[0] == "complete"

    play(one_job(), scenario, 5)


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (Attempt(0, 0, 2), "JOB_LEASE_LOST"),
        (Attempt(0, 1, 1), "JOB_NOT_FOUND"),
        (Attempt(1, 0, 1), "JOB_NOT_FOUND"),
    ],
)
def test_a_result_of_a_job_that_never_was_changes_nothing(attempt: Attempt, code: str):
    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        await take(test)
        assert (await test.send("g", "i", CompleteJob(attempt, "1"))).code == code
        assert await statuses(instance) == ["executing"]

    play(one_job(), scenario, 5)


def test_a_run_offers_a_thousand_jobs_at_a_time():
    definition = fan()
    definition["nodes"][1] |= {"external": True}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.run_until_idle()
        assert (await statuses(instance, "work")).count("dispatched") == 1_000
        (job,) = await test.activate_jobs("work")
        await job.complete({"n": 1})
        assert (await statuses(instance, "work")).count("dispatched") == 1_000

    play(definition, scenario, {"items": list(range(1_005))})


def test_external_is_for_tasks_alone():
    wrong = graph([{"ref": "a", "subworkflow": "g", "external": True}], [])
    with pytest.raises(ValueError, match=r"INVALID_DEFINITION at nodes\[0\]\.external"):
        WorkflowTest([wrong])
    nodes = [{"ref": "a", "task": "t", "external": True}]
    written = GraphWorkflow(name="g", initial_node_ref="a", nodes=nodes).to_dict()
    assert written["nodes"] == nodes


def test_a_task_may_ask_which_attempt_it_is_and_what_names_it_to_others():
    infos: list[TaskInfo] = []

    @task("pay")
    async def pay(_: object, info: TaskInfo) -> dict[str, int]:
        infos.append(info)
        if info.attempt == 1:
            raise ValueError("not yet")
        return {}

    async def scenario(test: WorkflowTest, instance: Instance) -> None:
        await test.advance("10 seconds")
        assert (await outcome(instance))[0] == "complete"

    play(graph([node("a", "pay", retries=RETRIES)], []), scenario, tasks=[pay])
    first, second = infos
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.idempotency_token == second.idempotency_token
    assert (second.workflow_name, second.instance_id, second.node_ref) == ("g", "i", "a")
    assert (second.run_number, second.token_id) == (0, "0")
