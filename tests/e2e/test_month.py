"""A month of a thousand people, as the documented payloads have it: a campaign of its own."""

from pathlib import Path

import pytest

from tests.conftest import SEEDS
from tests.e2e.month_check import check_month
from tests.e2e.system import System, opened


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_a_month_of_a_thousand_people_comes_to_what_a_plain_program_says(
    scratch: Path, fresh_database: str, seed: int
):
    parts = ("gateway", "gateway2", "worker", "worker2", "project")
    with opened(System(scratch / f"month{seed}", fresh_database), parts) as system:
        gateways = ("gateway", "gateway2")
        check_month(system, seed=seed, people=1_000, days=30, name="month", gateways=gateways)
