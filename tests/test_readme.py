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
