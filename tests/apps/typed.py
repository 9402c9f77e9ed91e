"""An app as a type checker sees it: each line that ends with a comment says what it must find.

`# is T` stands behind what has the type T, `# no CODE` behind what mypy has to refuse.
"""

from dataclasses import dataclass
from typing import Any, TypedDict, reveal_type

from headwater import (
    Break,
    Client,
    Continue,
    ReceivedEvent,
    Retry,
    Step,
    StepTx,
    Task,
    WorkflowEvent,
    Workflows,
    WorkflowTest,
    schedule,
    task,
    workflow,
)


class Order(TypedDict):
    sku: str


class Receipt(TypedDict):
    cents: int


@dataclass
class Letter:
    to: str


async def fetch() -> Receipt:
    return {"cents": 125}


async def refetch(sku: str) -> Receipt:
    return {"cents": len(sku)}


def charge(tx: StepTx) -> str:
    tx.execute("insert into charges values (%s)", ["order-1"])
    tx.send_event(order, "order-1", "charged")
    tx.create_workflow(post, id="letter-1", params=Letter("amara"))
    return "charge-1"


async def refund(charged: str) -> None:
    del charged


async def user(step: Step) -> str:
    return await step.do("name", lambda: "amara")


async def posts(step: Step) -> int:
    return await step.do("posts", lambda: 3)


async def one_page(step: Step, page: int) -> Continue[int] | Break[list[str]]:
    return Break(["a"]) if page > 2 else Continue(page + 1)


@workflow("post")
async def post(event: WorkflowEvent[Letter], step: Step) -> None:
    await step.log.info(event.payload.to)


@workflow("order", strict=True)
async def order(event: WorkflowEvent[Order], step: Step) -> Receipt:
    reveal_type(event.payload)  # is Order
    quote = await step.do("quote", fetch, retries=Retry(limit=5, backoff="linear"), timeout=500)
    reveal_type(quote)  # is Receipt
    await step.checkpoint("before money")
    reveal_type(await step.do("charge", charge, rollback=refund))  # is str
    reveal_type(await step.do("save", lambda tx: tx.publish("saved", None, quote)))  # is None
    reveal_type(await step.do("count", lambda: 3, rollback=lambda found: found + 1))  # is int
    reveal_type(await step.do("again", lambda: refetch("x")))  # is Receipt
    await step.do("charge", charge, rollback=posts)  # no arg-type
    await step.do("two", lambda one, two: 3)  # no misc
    await step.sleep("cool off", "1 hour")
    reveal_type((await step.wait_for_event("yes", type="approval")).payload)  # is Any
    approval: ReceivedEvent[Order] = await step.wait_for_event("yes", type="approval")
    reveal_type(approval.payload["sku"])  # is str
    reveal_type(await step.join("all", a=user, b=user))  # is dict[str, str]
    mixed: dict[str, Any] = await step.join("both", user=user, posts=posts)
    reveal_type(await step.race("first", a=posts, b=posts))  # is Won[int]
    reveal_type(await step.loop("pages", one_page, state=0))  # is list[str]
    await step.loop("pages", one_page, state="0")  # no arg-type
    reveal_type(await step.run_workflow("child", order, params={"sku": "x"}))  # is Receipt
    reveal_type(await step.run_workflow("other", "invoice", id="inv-1"))  # is Any
    reveal_type(await step.now())  # is datetime.datetime
    return {"cents": mixed["posts"]}


@task("ask_judge")
async def ask_judge(given: Order) -> Receipt:
    return {"cents": len(given["sku"])}


async def called_by_hand(judge: Task[[Order], str]) -> None:
    reveal_type(await ask_judge({"sku": "x"}))  # is Receipt
    reveal_type(judge({"sku": "x"}))  # is str
    await ask_judge({"sku": 3})  # no typeddict-item


schedule("nightly", cron="0 3 * * *", workflow=order, params={"sku": "x"})


async def use(client: Client) -> None:
    orders = client.workflow(order)
    instance = await orders.create(id="order-1", params={"sku": "x"}, labels={"team": "blue"})
    await orders.create(params={"sku": 3})  # no arg-type
    await client.workflow(post).create(params=Letter("bo"))
    await client.workflow(post).create(params="bo")  # no arg-type
    reveal_type(await instance.result(timeout="1 minute"))  # is Receipt
    reveal_type((await instance.status()).error)  # is Failure | None
    reveal_type(await orders.get("order-1").result())  # is Receipt
    reveal_type((await orders.create_batch([{"id": "a"}]))[0])  # is InstanceHandle[Receipt]
    reveal_type(await client.workflow("order").get("order-1").result())  # is Any


async def embed(client: Client, test: WorkflowTest) -> None:
    workflows = Workflows({"ORDER": order, "POST": post}, client)
    instance = await workflows[order].create(params={"sku": "x"})
    reveal_type(await instance.result())  # is Receipt
    await workflows[order].create(params="x")  # no arg-type
    reveal_type(workflows.POST)  # is BoundWorkflow[Any, Any]
    Workflows({"ORDER": order}, test)
    Workflows({"ORDER": order}, 7)  # no arg-type


async def test_order(workflow_test: type[WorkflowTest]) -> None:
    async with workflow_test([order, post], tasks=[ask_judge], seed=7) as test:
        instance = await test.create(order, id="order-1", params={"sku": "x"})
        reveal_type(await instance.result())  # is Receipt
        (entry, *_) = (await instance.history()).steps
        reveal_type(entry.attempts)  # is int
        reveal_type(entry.next_retry_at)  # is datetime.datetime | None
        reveal_type(test.published("saved")[0].key)  # is str | None
        reveal_type(test.execute("select 1"))  # is Listed[tuple[Any, ...]]
        other = await test.workflow(order).create(params={"sku": "x"})
        reveal_type(other)  # is TestInstance[Receipt]
        await test.workflow(order).create(params={"sky": "x"})  # no arg-type
        reveal_type(await test.tick(max_instances=1))  # is int
