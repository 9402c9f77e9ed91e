"""pytest plugin: the fixture `workflow_test`, and an event loop for tests that use it.

pytest loads it through its entry point wherever Headwater is installed, so it imports the harness
only when a test requests the fixture. Async tests that do not are left to other plugins.
"""

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.streams.harness.workflow_test import WorkflowTest


@pytest.fixture
def workflow_test() -> "type[WorkflowTest]":
    """Return the class `WorkflowTest`, so that a test need not import it."""
    from headwater.streams.harness.workflow_test import WorkflowTest  # noqa: PLC0415 (see above)

    return WorkflowTest


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses the fixture, unless another plugin does."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or "workflow_test" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001, as pytest does
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
