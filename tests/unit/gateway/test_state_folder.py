"""The folder in which a worker keeps the state of its partitions."""

from pathlib import Path

import pytest

from headwater.gateway.cli.starting import stores_of
from headwater.gateway.settings.settings import Settings
from headwater.schemas.errors import ProcessUnavailable


def test_state_lies_in_the_folder_of_the_data(tmp_path: Path):
    settings = Settings(data_dir=tmp_path / "here", state_memory_mib=16)
    stores_of(settings, lambda: 0)
    assert (tmp_path / "here" / "state").is_dir()


def test_a_folder_that_cannot_be_made_is_named_with_the_setting(tmp_path: Path):
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "file")
    with pytest.raises(ProcessUnavailable, match=r"file/state, found .*set HEADWATER_DATA_DIR"):
        stores_of(settings, lambda: 0)
