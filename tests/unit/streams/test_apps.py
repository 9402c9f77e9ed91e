"""What an app is, and what its author is told when it cannot be loaded."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from headwater import schedule
from headwater.processors.cron import Cron
from headwater.streams.code_host.apps import (
    AppNotLoaded,
    Declarations,
    load_app,
    merge_declarations,
)
from headwater.streams.code_host.schedules import Declared
from headwater.streams.workflows.host_process import HostCode, declarations_of

ORDER = """
    from headwater import workflow

    @workflow("order")
    async def order(event, step):
        return None
    """

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into the current directory, and forgets those that the test imports."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, *sources: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(dedent(source) for source in sources))

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(spec: str) -> str:
    with pytest.raises(AppNotLoaded) as caught:
        load_app(spec)
    return caught.value.message


def test_a_module_stands_for_all_its_workflows(write: Write):
    write("shop_a.py", ORDER, 'ship = workflow("ship")(order.function)', "also = order")
    assert sorted(load_app("shop_a").workflows) == ["order", "ship"]


def test_a_workflow_counts_where_it_is_imported_too(write: Write):
    write("shop_b/__init__.py", "from shop_b.orders import order")
    write("shop_b/orders.py", ORDER)
    assert load_app("shop_b") == load_app("shop_b.orders") == load_app("shop_b:orders")


@pytest.mark.parametrize("value", ["order", "[order]", "(order,)", "{'any': order}"])
def test_an_attribute_is_a_workflow_or_several(write: Write, value: str):
    write("shop_c.py", ORDER, f"app = {value}", 'other = workflow("other")(order.function)')
    assert list(load_app("shop_c:app").workflows) == ["order"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("", "expected an app as package.module or package.module:attribute, found ''"),
        ("a b", "found 'a b'"),
        ("shop/orders.py", "found 'shop/orders.py'; name the module, not its file"),
        ("orders.py", "found no orders; name the module, not its file"),
        ("shop:app:more", "found 'shop:app:more'"),
    ],
)
def test_a_spec_that_is_none(spec: str, told: str):
    assert told in refusal(spec)


def test_a_module_that_is_not_there(write: Write, tmp_path: Path):
    write("shop_d/__init__.py")
    assert refusal("nowhere") == (
        f"expected a module nowhere in {tmp_path} or on PYTHONPATH, found no nowhere"
    )
    assert "found no shop_d.nowhere" in refusal("shop_d.nowhere")
    assert "found no nowhere" in refusal("nowhere.orders")


def test_a_module_that_imports_what_is_not_there(write: Write, tmp_path: Path):
    write("shop_e.py", "import shop_e_stock")
    reported = refusal("shop_e")
    assert reported.startswith(
        "expected to import shop_e, found that it raises "
        "ModuleNotFoundError: No module named 'shop_e_stock'\n"
    )
    assert f'File "{tmp_path}/shop_e.py", line 1' in reported
    assert "importlib" not in reported
    assert "PYTHONPATH" not in reported


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("1 / 0", "raises ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "raises SystemExit: 3"),
        ("def f(:", "raises SyntaxError: invalid syntax"),
        ("from headwater import nonsense", "raises ImportError: cannot import name 'nonsense'"),
    ],
)
def test_a_module_that_raises(write: Write, source: str, told: str):
    write("shop_f.py", source)
    assert told in refusal("shop_f")


def test_an_attribute_that_is_not_there(write: Write):
    write("shop_g.py", ORDER)
    assert refusal("shop_g:app") == "expected shop_g to have app, found no such name in it"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("order.function", "expected shop_h:app to be a workflow, made by @workflow(...), or a"),
        ("lambda: [order]", "found <function <lambda>"),
        ("[order, 7]", "expected only workflows, made by @workflow(...), in shop_h:app, found 7"),
        ("[]", "expected a workflow or a task in shop_h:app, an async function under"),
    ],
)
def test_an_attribute_that_is_no_workflow(write: Write, value: str, told: str):
    write("shop_h.py", ORDER, f"app = {value}")
    assert told in refusal("shop_h:app")


def test_a_module_without_workflows(write: Write):
    write("shop_i.py", "x = 1")
    assert refusal("shop_i") == (
        'expected a workflow or a task in shop_i, an async function under @workflow("name") or '
        '@task("name"), found none'
    )


def test_a_module_of_tasks_alone(write: Write):
    write("shop_k1.py", "from headwater import task", '@task("pay")', "def pay(given): ...")
    app = load_app("shop_k1")
    assert (list(app.tasks), app.workflows, app.graphs) == (["pay"], {}, {})


def test_two_workflows_of_one_name(write: Write):
    write("shop_j.py", ORDER, "first = order", ORDER)
    assert refusal("shop_j") == (
        "expected each name once in shop_j, found two workflows 'order': "
        "shop_j.order and shop_j.order"
    )


SCHEDULED = """
    from headwater import schedule

    nightly = schedule("nightly", cron="0 3 * * *", workflow="order")
    schedule("hourly", cron="0 * * * *", workflow=order)
    """


def names_of_schedules(spec: str) -> list[str]:
    return sorted(item.declared.schedule for item in load_app(spec).schedules)


def test_a_schedule_counts_with_or_without_a_name_of_its_own(write: Write):
    write("clock_a.py", ORDER, SCHEDULED)
    assert names_of_schedules("clock_a") == ["hourly", "nightly"]
    assert sorted(load_app("clock_a").workflows) == ["order"]


def test_a_schedule_counts_where_it_is_imported_by_name(write: Write):
    write("clock_b.py", ORDER, SCHEDULED)
    write("clock_c.py", "from clock_b import *")
    assert names_of_schedules("clock_c") == ["nightly"]


def test_an_attribute_may_list_schedules(write: Write):
    write("clock_d.py", ORDER, SCHEDULED, "app = [order, nightly]", "only = order")
    assert names_of_schedules("clock_d:app") == ["nightly"]
    assert names_of_schedules("clock_d:only") == []
    assert sorted(load_app("clock_d:only").workflows) == ["order"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            'schedule("hourly", cron="0 1 * * *", workflow="order")',
            "expected each name once in clock_e, found two schedules 'hourly': clock_e:",
        ),
        (
            'schedule("other", cron="0 1 * * *", workflow="nothing")',
            "expected the workflow of the schedule 'other' (clock_e:14) to be one of clock_e: "
            "order; found 'nothing'",
        ),
        ('schedule("other", cron="never", workflow="order")', "found 'never'"),
        ('schedule("other", cron="0 1 * * *")', "TypeError"),
        (
            "from headwater import WorkflowEvent\n"
            "async def count(event: WorkflowEvent[dict[str, int]], step): ...\n"
            'counts = workflow("counts")(count)\n'
            'schedule("other", cron="0 1 * * *", workflow=counts, params={"a": "b"})',
            'are added, to be what counts takes, found params.a: "b" is not of type "integer"',
        ),
        (
            'mine = workflow("headwater-schedule")(order.function)',
            "expected no workflow whose name begins with headwater-, which is reserved for "
            "built-in workflows, found headwater-schedule (clock_e.order)",
        ),
    ],
)
def test_a_schedule_that_cannot_be(write: Write, source: str, told: str):
    write("clock_e.py", ORDER, SCHEDULED, source)
    assert told in refusal("clock_e")


def test_what_an_app_declares_is_told_by_another_process(write: Write, tmp_path: Path):
    write("clock_f.py", ORDER, SCHEDULED, 'print("as authors do")')
    result = asyncio.run(declarations_of("clock_f", code=HostCode(tmp_path)))
    assert result.workflows == ("order",)
    assert [item.schedule for item in result.schedules] == ["nightly", "hourly"]
    assert result.schedules[0].at == Cron("0 3 * * *", "UTC")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(3)", "found that the process ended with exit code 3"),
        ("import time; time.sleep(60)", "expected clock_g to be imported within 0.5 s"),
    ],
)
def test_an_app_that_cannot_be_asked(write: Write, tmp_path: Path, source: str, told: str):
    write("clock_g.py", ORDER, source)
    with pytest.raises(AppNotLoaded) as caught:
        asyncio.run(
            declarations_of(
                "clock_g", code=HostCode(tmp_path), within_s=0.5 if "sleep" in source else 30
            )
        )
    assert told in caught.value.message


def declares(*workflows: str, schedules: tuple[Declared, ...] = ()) -> Declarations:
    return Declarations(workflows, schedules)


def test_apps_side_by_side_declare_what_each_of_them_does():
    nightly = schedule("nightly", cron="0 3 * * *", workflow="ship").declared
    result = merge_declarations({"shop": declares("pay", "order"), "dock": declares("ship")})
    assert result == declares("order", "pay", "ship")
    result = merge_declarations(
        {"shop": declares("order"), "dock": declares("ship", schedules=(nightly,))}
    )
    assert result == declares("order", "ship", schedules=(nightly,))


def test_topics_that_steps_publish_to_are_declared(write: Write):
    write("shop_t.py", ORDER.replace('"order"', '"order", publishes=["b", "a"]'))
    declared = load_app("shop_t").declared
    assert declared.publishes == {"order": ("a", "b")}
    result = merge_declarations(
        {"shop": declared, "dock": Declarations(publishes={"ship": ("b", "c")})}
    )
    assert result.topics == {"a", "b", "c"}


@pytest.mark.parametrize("elsewhere", ["{}", "{}:", "{0}::{0}"])
def test_what_lies_in_its_directory_comes_before_what_lies_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
):
    places = [tmp_path / "here", tmp_path / "there"]
    for position in places:
        position.mkdir()
        (position / "shop_w.py").write_text(dedent(ORDER).replace('"order"', f'"{position.name}"'))
    monkeypatch.setenv("PYTHONPATH", elsewhere.format(places[1]))
    result = asyncio.run(declarations_of("shop_w", code=HostCode(places[0])))
    assert result.workflows == ("here",)


def test_workflows_whose_runs_follow_the_code_are_declared(write: Write):
    write("shop_l.py", ORDER.replace('"order"', '"order", versioning="latest"'))
    assert load_app("shop_l").declared.latest == ("order",)
    write("shop_p.py", ORDER.replace('"order"', '"order", versioning="pinned"'))
    assert load_app("shop_p").declared.latest == ()
    write("shop_n.py", ORDER.replace('"order"', '"order", versioning="newest"'))
    with pytest.raises(AppNotLoaded, match="'pinned' or 'latest', found 'newest'"):
        load_app("shop_n")


def test_apps_that_declare_the_same_name_are_refused():
    with pytest.raises(AppNotLoaded) as caught:
        merge_declarations({"shop": declares("pay", "order"), "dock": declares("order")})
    assert caught.value.message == (
        "expected each workflow in one app, found the workflow 'order' in shop and in dock; give "
        "one of them another name"
    )
    nightly = schedule("nightly", cron="0 3 * * *", workflow="ship").declared
    shop, dock = (declares(name, schedules=(nightly,)) for name in ("order", "ship"))
    with pytest.raises(AppNotLoaded, match="the schedule 'nightly' in shop and in dock"):
        merge_declarations({"shop": shop, "dock": dock})
