"""Step transactions: all that a step does takes effect with its record, once, or not at all."""

import asyncio

import pytest

from headwater import NonRetryableError, Retry, Step, StepTx, WorkflowEvent, WorkflowTest, workflow
from tests.workflows.running import (
    Deployed,
    begin,
    entry_at,
    error_of,
    output_of,
    pass_time,
    published,
    run,
    state_of,
)

TABLE = "CREATE TABLE charges (id TEXT PRIMARY KEY, amount INTEGER)"
INSERT = "INSERT INTO charges (id, amount) VALUES (%s, %s)"
ALL = "SELECT id, amount FROM charges ORDER BY id"


def order_that(callback: object, **options: object) -> object:
    """A workflow of one step, and an hour after it."""

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        result = await step.do("save", callback, **options)
        await step.sleep("cool off", "1 hour")
        return result

    return order


@workflow("invoice")
async def invoice(event: WorkflowEvent, step: Step) -> object:
    """Waits for its payment."""
    reply = await step.wait_for_event("payment", type="payment", timeout="1 day")
    return [event.payload, reply.payload]


def save(tx: StepTx) -> str:
    """One of everything."""
    tx.publish("charges", "a", {"amount": 125})
    tx.execute(INSERT, ("a", 125))
    tx.create_workflow("invoice", id="inv-1", params={"order": "a"})
    tx.send_event("invoice", "inv-0", "payment", "paid")
    return "saved"


async def effects(test: WorkflowTest) -> list[object]:
    """What the world has seen of `save`."""
    events = (await test.get("invoice", "inv-0").history()).events
    return [
        published(test, "charges"),
        test.execute(ALL),
        [event.payload for event in events],
    ]


NOTHING = [[], [], []]
ALL_OF_IT = [[("a", {"amount": 125})], [("a", 125)], ["paid"]]


async def prepare(test: WorkflowTest) -> None:
    test.execute(TABLE)
    await begin(test, "invoice", "inv-0", params="zero")


def test_everything_takes_effect_when_the_step_completes():
    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        assert await effects(test) == NOTHING
        await begin(test)
        assert await effects(test) == ALL_OF_IT
        paid = test.get("invoice", "inv-0")
        assert await output_of(paid) == ["zero", "paid"]
        created = test.get("invoice", "inv-1")
        assert await state_of(created) == "waiting"
        await created.send_event("payment", "later")
        await test.run_until_idle()
        assert await output_of(created) == [{"order": "a"}, "later"]

    run(scenario, order_that(save), invoice)


def test_nothing_takes_effect_again_on_replay():
    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        instance = await begin(test)
        for _ in range(3):
            await test.crash()
            await test.run_until_idle()
        await test.advance("1 hour")
        assert await output_of(instance) == "saved"
        assert await effects(test) == ALL_OF_IT

    run(scenario, order_that(save), invoice)


def test_nothing_of_a_failed_attempt_takes_effect():
    code = Deployed()

    def fails_after_all(tx: StepTx) -> str:
        saved = save(tx)
        if code.version == 1:
            raise ConnectionError("bank is closed")
        return saved

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        await begin(test)
        assert await effects(test) == NOTHING
        code.version = 2
        await test.advance("10 seconds")
        assert await effects(test) == ALL_OF_IT

    run(scenario, order_that(fails_after_all), invoice)


def test_nothing_of_an_attempt_that_timed_out_takes_effect():
    async def slow(tx: StepTx) -> str:
        saved = save(tx)
        await pass_time("2 minutes")
        return saved

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        instance = await begin(test)
        await test.advance("5 minutes")
        await error_of(instance)
        assert await effects(test) == NOTHING

    run(scenario, order_that(slow, timeout="1 minute", retries=Retry(limit=0)), invoice)


def test_nothing_of_an_attempt_that_a_crash_cut_short_takes_effect_twice():
    begun: list[int] = []

    async def interrupted(tx: StepTx) -> str:
        begun.append(1)
        saved = save(tx)
        if len(begun) == 1:
            await pass_time("1 minute")
        return saved

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        await begin(test)
        assert await effects(test) == NOTHING
        await test.crash()
        assert await effects(test) == NOTHING
        await test.advance("5 minutes")
        assert await effects(test) == ALL_OF_IT
        assert len(begun) == 2

    run(scenario, order_that(interrupted), invoice)


def test_after_each_turn_sql_has_taken_effect_exactly_if_the_history_says_so():
    """A turn is what a crash cannot divide."""

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        instance = await test.create("order")
        charged = False
        while not charged:
            test._turn(None)
            charged = bool(test.execute(ALL))
            steps = (await instance.history()).steps
            assert [step.status for step in steps[:1]] == ["completed"] * charged
            await asyncio.sleep(0)

    run(scenario, order_that(save), invoice)


def test_nothing_of_a_callback_that_lost_a_race_takes_effect():
    async def slow(tx: StepTx) -> str:
        saved = save(tx)
        await pass_time("2 minutes")
        return saved

    async def saves(step: Step) -> object:
        return await step.do("save", slow)

    async def waits(step: Step) -> None:
        await step.sleep("wait", "1 minute")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        return (await step.race("fastest", saves=saves, timeout=waits)).winner

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        instance = await begin(test)
        await test.advance("5 minutes")
        assert await output_of(instance) == "timeout"
        assert await effects(test) == NOTHING

    run(scenario, order, invoice)


def test_nothing_takes_effect_while_the_callback_still_runs():
    async def slow(tx: StepTx) -> str:
        saved = save(tx)
        await pass_time("1 minute")
        return saved

    async def scenario(test: WorkflowTest) -> None:
        await prepare(test)
        await begin(test)
        await test.advance("59 seconds")
        assert await effects(test) == NOTHING
        await test.advance("1 second")
        assert await effects(test) == ALL_OF_IT

    run(scenario, order_that(slow), invoice)


def test_statements_run_in_order_and_records_keep_theirs():
    def several(tx: StepTx) -> None:
        tx.execute(INSERT, ("a", 1))
        tx.execute("UPDATE charges SET amount = amount + %s WHERE id = %s", (41, "a"))
        tx.execute(INSERT, ("it's 100%", 2))
        for number in range(5):
            tx.publish("charges", "a", number)

    async def scenario(test: WorkflowTest) -> None:
        test.execute(TABLE)
        await begin(test)
        assert test.execute(ALL) == [("a", 42), ("it's 100%", 2)]
        assert published(test, "charges") == [("a", number) for number in range(5)]
        assert published(test, "elsewhere") == []

    run(scenario, order_that(several))


def test_a_unique_violation_fails_the_step_without_a_retry_and_takes_all_of_it_back():
    calls: list[int] = []

    def conflicts(tx: StepTx) -> None:
        calls.append(1)
        tx.publish("charges", "a", 1)
        tx.execute(INSERT, ("b", 2))
        tx.execute(INSERT, ("a", 3))

    async def scenario(test: WorkflowTest) -> None:
        test.execute(TABLE)
        test.execute(INSERT, ("a", 1))
        instance = await begin(test)
        assert (await error_of(instance)).name == "UniqueConstraintError"
        entry = await entry_at(instance, "save")
        assert (entry.status, entry.attempts) == ("errored", 1)
        await test.advance("1 day")
        assert len(calls) == 1
        assert test.execute(ALL) == [("a", 1)]
        assert published(test, "charges") == []

    run(scenario, order_that(conflicts))


def test_a_statement_that_fails_costs_its_own_instance_only():
    def wrong(tx: StepTx) -> None:
        tx.execute("INSERT INTO no_such_table (id) VALUES (%s)", ("a",))

    @workflow("other")
    async def other(event: WorkflowEvent, step: Step) -> str:
        return await step.do("save", lambda tx: tx.execute(INSERT, ("a", 1)) or "saved")

    async def scenario(test: WorkflowTest) -> None:
        test.execute(TABLE)
        broken = await test.create("order", id="broken")
        fine = await test.create("other", id="fine")
        await test.run_until_idle()
        await error_of(broken)
        assert await output_of(fine) == "saved"
        assert test.execute(ALL) == [("a", 1)]

    run(scenario, order_that(wrong, retries=Retry(limit=0)), other)


def test_creating_an_instance_whose_id_exists_is_skipped():
    def creates(tx: StepTx) -> str:
        tx.create_workflow("invoice", id="inv-0", params="changed")
        tx.create_workflow("invoice", id="inv-1", params="new")
        return "saved"

    async def scenario(test: WorkflowTest) -> None:
        existing = await begin(test, "invoice", "inv-0", params="zero")
        await begin(test)
        for item in (existing, test.get("invoice", "inv-1")):
            await item.send_event("payment", "paid")
        await test.advance("1 hour")
        assert await output_of(existing) == ["zero", "paid"]
        assert await output_of(test.get("invoice", "inv-1")) == ["new", "paid"]
        assert await output_of(test.get("order", "i-1")) == "saved"

    run(scenario, order_that(creates), invoice)


@pytest.mark.parametrize("target", ["missing", "ended"])
def test_an_event_for_nobody_is_dropped_with_a_line_in_the_log(target: str):
    def sends(tx: StepTx) -> str:
        tx.send_event("invoice", target, "payment", "paid")
        return "saved"

    async def scenario(test: WorkflowTest) -> None:
        await (await begin(test, "invoice", "ended")).terminate()
        await test.run_until_idle()
        instance = await begin(test)
        await test.advance("1 hour")
        assert await output_of(instance) == "saved"
        lines = (await instance.history()).logs
        assert "system" in {line.category for line in lines}

    run(scenario, order_that(sends), invoice)


def test_an_event_that_an_instance_sends_to_itself_reaches_its_later_wait():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> object:
        await step.do("send", lambda tx: tx.send_event("order", event.instance_id, "go", {"n": 1}))
        return (await step.wait_for_event("go", type="go", timeout="1 minute")).payload

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == {"n": 1}

    run(scenario, order)


def test_a_line_says_that_an_instance_of_no_workflow_was_not_created():
    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        (line,) = (await instance.history()).logs
        assert (line.level, line.category) == ("warn", "system")
        assert line.message.startswith("nope/x was not created: expected one of the workflows")
        await test.crash()
        await test.advance("1 hour")
        assert await output_of(instance) is None
        assert len((await instance.history()).logs) == 1

    run(scenario, order_that(lambda tx: tx.create_workflow("nope", id="x")))


def test_of_an_instance_that_is_there_already_no_line_tells():
    async def scenario(test: WorkflowTest) -> None:
        await begin(test, "invoice", "inv-1")
        assert (await (await begin(test)).history()).logs == []

    creates = order_that(lambda tx: tx.create_workflow("invoice", id="inv-1"))
    run(scenario, creates, invoice)


def test_what_others_refuse_of_a_step_is_noted_also_when_the_run_has_ended():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> str:
        await step.do("tell", lambda tx: tx.send_event("order", "nobody", "paid", 1))
        return "done"

    async def scenario(test: WorkflowTest) -> None:
        instance = await begin(test)
        assert await output_of(instance) == "done"
        (line,) = (await instance.history()).logs
        assert line.category == "system"
        assert "nobody" in line.message

    run(scenario, order)


def test_a_step_with_sql_that_a_task_group_gives_up_is_rolled_back_if_it_took_effect():
    undone: list[object] = []

    def refuse() -> None:
        raise NonRetryableError("no")

    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        await step.checkpoint("before money")
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("save", save, rollback=undone.append))
            group.create_task(step.do("ship", refuse))

    async def scenario(test: WorkflowTest) -> None:
        test.execute(TABLE)
        await test.create("invoice", id="inv-0")
        instance = await begin(test)
        assert await state_of(instance) == "errored"
        taken = (await entry_at(instance, "save")).status == "completed"
        assert undone == ["saved"] * taken
        assert test.execute(ALL) == [("a", 125)] * taken

    run(scenario, order, invoice)


def test_sql_is_undone_by_another_step_however_often_the_process_dies():
    @workflow("order")
    async def order(event: WorkflowEvent, step: Step) -> None:
        try:
            await step.do("save", lambda tx: tx.execute(INSERT, ("a", 125)))
            await step.wait_for_event("payment", type="payment", timeout="1 hour")
        except Exception:
            await step.do("undo", lambda tx: tx.execute("DELETE FROM charges WHERE id = 'a'"))
            raise

    async def scenario() -> None:
        async with WorkflowTest([order]) as test:
            test.execute(TABLE)
            instance = await test.create("order", id="o")
            await test.run_until_idle()
            assert test.execute(ALL) == [("a", 125)]
            await test.crash()
            await test.advance("1 hour")
            await test.crash()
            await test.run_until_idle()
            status = await instance.status()
            assert (status.status, status.error.name) == ("errored", "EventTimeoutError")
            assert test.execute(ALL) == []

    asyncio.run(scenario())


def test_sql_that_fails_is_logged_with_its_statement(caplog: pytest.LogCaptureFixture):
    def save(tx: StepTx) -> None:
        tx.execute("insert into nowhere (a) values (%s)", [1])

    async def scenario(test: WorkflowTest) -> None:
        await begin(test)
        assert 'order/i-1: step "save", attempt 1 failed: OperationalError: ' in caplog.text
        assert "statement 1 of 1 (insert into nowhere (a) values (%s)) to take" in caplog.text

    run(scenario, order_that(save))
