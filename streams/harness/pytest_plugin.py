"""The plugin for pytest: the fixture `workflow_test`, and a loop for the tests that use it.

pytest finds it by its entry point, in every session of whoever has Headwater installed; so it
imports the harness only when a test asks for the fixture. Async tests that do not are left to
other plugins.
"""

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.streams.harness.workflow_test import WorkflowTest


@pytest.fixture
def workflow_test() -> "type[WorkflowTest]":
    """The class `WorkflowTest`, so that a test needs no import of it."""
    from headwater.streams.harness.workflow_test import WorkflowTest  # noqa: PLC0415 (see above)

    return WorkflowTest


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an async test that uses the fixture, unless another plugin does."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or "workflow_test" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001, what pytest itself calls it with
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
