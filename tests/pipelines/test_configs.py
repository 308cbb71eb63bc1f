from __future__ import annotations

from pathlib import Path

import pytest

from clam_dist.config import load_config
from clam_dist.demo import DEMOS
from clam_dist.errors import ConfigError
from pipelines.configs import DEMO_DATA, find_config, packaged_names


@pytest.mark.parametrize("name", packaged_names())
def test_every_packaged_config_is_valid(name: str) -> None:
    path, packaged = find_config(name)
    assert packaged == name
    assert load_config(path, environ={}).name == name


def test_demo_data_belongs_to_packaged_configs() -> None:
    assert set(DEMO_DATA) <= set(packaged_names())
    assert {data.name for data in DEMO_DATA.values()} <= set(DEMOS)


def test_a_file_wins_over_a_packaged_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("name: mine\n")
    assert find_config("quickstart") == (Path("quickstart"), None)


def test_neither_file_nor_name_names_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file here.*one of: quickstart"):
        find_config(str(tmp_path / "quickstat.yaml"))
