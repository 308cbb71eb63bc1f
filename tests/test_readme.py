"""The README's two commands are there for CI to run, and its examples name what exists."""

import re
from pathlib import Path

import yaml

from clam_dist.config import config_from_dict

README = Path(__file__).parents[1] / "README.md"


def fenced(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_two_commands_are_marked():
    text = README.read_text(encoding="utf-8")
    for name in ("main", "tests"):
        assert re.search(rf"<!-- command: {name} -->\n```bash\n.+\n```", text)


def test_every_key_of_the_settings_table_is_known_with_its_default():
    text = next(block for block in fenced("yaml") if "prepare:" in block)
    values = yaml.safe_load(
        text.replace("uri: …", "uri: x").replace("n_clusters: …", "n_clusters: 2")
    )
    shown = config_from_dict(values).public_dict()
    least = {"source": {"uri": "x"}, "model": {"n_clusters": 2}, "name": "quickstart"}
    assert shown == config_from_dict(least).public_dict()


def test_the_yaml_examples_are_valid_configs():
    base = {"source": {"uri": "x"}, "model": {"n_clusters": 2}}
    for block in fenced("yaml"):
        for line in block.splitlines():
            if line.startswith("cluster:") and "kind" not in line:
                config_from_dict({**base, **yaml.safe_load(line)})


def test_the_estimator_example_runs(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    rows = np.repeat([[0.0, 0.0, 0.0], [9.0, 0.0, 9.0]], 30, axis=0)
    rows += generator.normal(size=rows.shape)
    holes = np.where(generator.random(rows.shape) < 0.1, np.nan, rows)
    names = {"X": rows, "new": rows[:5], "rows_with_holes": holes, "chunk": rows[::2]}
    block = next(block for block in fenced("python") if "import ClAM" in block)
    exec(block, names)
    assert names["model"].n_clusters_ == 2
    assert (tmp_path / "model").is_dir()
