"""The config: layers and their precedence, every problem at once, secrets, templates, digests."""

from __future__ import annotations

import json
import pickle
import traceback
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clam_dist.config import Config, config_from_dict, load_config
from clam_dist.config_errors import nearest_key
from clam_dist.config_values import parse_bytes
from clam_dist.errors import ConfigError

MINIMAL = {"source": {"uri": "rows.parquet"}, "model": {"n_clusters": 9}}
CONTRACT = """
name: quickstart
seed: 0
source:   {uri: data/*.parquet, format: auto, features: null, exclude: [], keep: [], label: null,
           weight: null, storage_options: {}}
prepare:  {scaling: standard, missing: mask, categories: onehot, shard_rows: auto}
model:    {kind: clam, n_clusters: 9, beta: auto, steps: 10, step_size: null, mask_rate: 0.15,
           mask_value: mean, objective: auto, weighted: false, geometry: euclidean}
train:    {epochs: auto, batch_rows: auto, learning_rate: auto, restarts: 4, select: silhouette,
           device: auto, rows: auto}
evaluate: {silhouette_rows: 10000, references: auto}
cluster:  {kind: auto, workers: auto, memory_limit: auto, address: null, cluster_class: null,
           cluster_kwargs: {}, wait: 120, max_restarts: 5}
work:     {uri: auto, keep: false, size_limit: auto}
output:   {uri: runs/quickstart}
"""


def load(*overrides: str, text: str | None = None, tmp_path: Path | None = None, **environ: str):
    if text is None:
        base = ("source.uri=rows.parquet", "model.n_clusters=9")
        return load_config(None, [*base, *overrides], environ)
    assert tmp_path is not None
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides, environ)


def message(*overrides: str, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, **kwargs)
    return str(caught.value)


def test_contract_is_accepted_and_its_values_are_the_defaults(tmp_path):
    whole = load(text=CONTRACT, tmp_path=tmp_path).public_dict()
    few = load(
        "name=quickstart", "source.uri=data/*.parquet", "output.uri=runs/quickstart"
    ).public_dict()
    assert whole == few


def test_precedence_is_set_then_environment_then_file(tmp_path):
    text = "source: {uri: a}\nmodel: {n_clusters: 2, steps: 3, beta: 4}"
    environ = {"CLAM_DIST_MODEL__STEPS": "5", "CLAM_DIST_MODEL__BETA": "6"}
    model = load("model.beta=7", text=text, tmp_path=tmp_path, **environ).model
    assert (model.n_clusters, model.steps, model.beta) == (2, 5, 7.0)


def test_environment_ignores_what_platforms_set_themselves():
    config = load(CLAM_DIST_SERVICE_HOST="10.0.0.1", CLAM_DIST_PORT="1", CLAM_DIST_SEED="7")
    assert config.seed == 7


def test_name_is_the_files_stem_unless_given(tmp_path):
    text = "source: {uri: a}\nmodel: {n_clusters: 2}"
    assert load(text=text, tmp_path=tmp_path).name == "config"
    assert load("name=other", text=text, tmp_path=tmp_path).name == "other"


def test_set_values_are_yaml():
    config = load(
        "source.keep=[id, day]", "source.features=null", "work.keep=true", "model.beta=[1e-3, 2]"
    )
    assert config.source.keep == ("id", "day")
    assert config.source.features is None
    assert config.work.keep is True
    assert config.model.beta == (0.001, 2.0)


def test_a_section_written_empty_means_its_defaults(tmp_path):
    text = "source: {uri: a}\nmodel: {n_clusters: 2}\ntrain:\n"
    assert load(text=text, tmp_path=tmp_path).train.restarts == 4


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("source.exlude=[x]", "source.exlude (set by --set): unknown key; did you mean source.exc"),
        (
            "model.learning_rate=1",
            "model.learning_rate (set by --set): unknown key; did you mean tr",
        ),
        ("beta=1", "did you mean model.beta?"),
        ("modle.beta=1", "did you mean model?"),
        ("model.zzzz=1", "unknown key; known here are model.kind, model.n_clusters"),
        ("model.kind=clma", "model.kind (set by --set): expected one of clam, dclam, tdcm, kmeans"),
        ("model.kind=clma", "got 'clma'; did you mean clam?"),
        (
            "model.n_clusters=1",
            "expected a whole number of at least 2, a list of them or auto; got 1",
        ),
        ("model.n_clusters=true", "got True"),
        ("model.n_clusters=2.5", "got 2.5"),
        ("model.n_clusters=[]", "got an empty list"),
        ("model.n_clusters=[4, 1]", "got [4, 1]"),
        ("model.beta=-1", "of at least 1e-30 and of at most 1e+30, a list of them or auto; got -1"),
        ("model.beta=.inf", "got inf"),
        ("model.beta=fast", "got 'fast'"),
        ("model.mask_rate=1", "expected a number above 0 and below 1 or a list of them; got 1"),
        ("model.step_size=2.5", "expected a number of at least 1e-06 and below 2 or null; got 2.5"),
        ("model=3", "model (set by --set): expected keys under it; got 3"),
        ("source.keep=[3]", "expected a list of column names (text); got [3]"),
        ("source.keep=[a, a]", "column 'a' is named twice"),
        ("source.keep=[id, cluster]", "'cluster' is a column that labels/ adds itself"),
        ("source.keep=silhouette", "'silhouette' is a column that labels/ adds itself"),
        ("source.uri=", "expected text; got None"),
        ("work.keep=maybe", "work.keep (set by --set): expected"),
        ("cluster.memory_limit=2 pints", "expected a size such as 2 GiB or 500 MB"),
        ("cluster.kind=address", "cluster.address: required with cluster.kind: address"),
        ("cluster.kind=class", "cluster.cluster_class: required with cluster.kind: class"),
        ("output.uri=s3://bucket/x", "s3://bucket/x is not a local or shared folder"),
        ("name=a/b", "name (set by --set): expected text without /"),
        ("seed=-1", "expected a whole number of at least 0"),
        ("model.image_shape=[8, 8]", "expected [channels, height, width] or null; got [8, 8]"),
        ("model.network=[3]", "expected a kind of network, or keys and values; got [3]"),
        ("evaluate.columns=[entropi]", "expected any of entropy, energy, memberships, latent"),
        ("prepare.scaling=robust", "robust is not available in this version; use standard or minm"),
        ("model.beta", "--set model.beta: expected key=value"),
        ("a..b=1", "--set a..b: expected key=value"),
        ("model.beta={", "--set model.beta, line 1, column 2"),
        ("output.uri={name}", "quotes if it begins with {"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(override, expected):
    assert expected in message(override)


def test_both_features_and_another_role_is_an_error():
    assert "'a' is also in source.features" in message("source.features=[a, b]", "source.label=a")
    said = message("source.features=[a, b]", "source.domain=b")
    assert "source.domain (set by --set): 'b' is also in source.features" in said
    said = message("source.weight=a", "source.domain=a")
    assert "source.domain (set by --set): 'a' is also source.weight" in said


def test_the_domain_may_be_kept_and_be_the_label_too():
    assert load().source.domain is None
    config = load("source.keep=[site]", "source.label=site", "source.domain=site")
    assert config.source.domain == "site"


def test_all_problems_are_reported_at_once_with_where_they_came_from(tmp_path):
    text = "source: {exlude: [x]}\nmodel: {n_clusters: 9, kind: clma}\n"
    said = message("seed=x", text=text, tmp_path=tmp_path, CLAM_DIST_MODEL__BTA="1")
    assert "config.yaml: 5 problems" in said
    for line in (
        "- seed (set by --set): expected a whole number",
        "- source.uri: required, but not given",
        "- source.exlude: unknown key",
        "- model.kind: expected one of",
        "- model.bta (set by CLAM_DIST_MODEL__BTA): unknown key; did you mean model.beta?",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("source: [unclosed", "line 1"),
        ("- a\n- b", "expected keys such as 'source:' at the top level"),
        ("seed: 1\nseed: 2", "line 2, column 1: key 'seed' is given twice"),
        ("output: {uri: runs/{name}}", "needs quotes"),
    ],
)
def test_a_file_that_is_no_config_says_where(text, expected, tmp_path):
    assert expected in message(text=text, tmp_path=tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.yaml", [], {})
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path, [], {})
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml", [], {})


SECRET = "hunter2"


def test_storage_options_reach_code_and_nothing_else():
    config = load(f"source.storage_options={{key: {SECRET}, client: {{token: {SECRET}}}}}")
    assert config.source.storage_options_plain() == {"key": SECRET, "client": {"token": SECRET}}
    assert pickle.loads(pickle.dumps(config)) == config
    shown = [repr(config), str(config), config.model_dump_json(), json.dumps(config.public_dict())]
    shown += [repr(config.source.storage_options), f"{config.source}"]
    assert not any(SECRET in text for text in shown)
    with pytest.raises(TypeError):
        json.dumps(config.source.storage_options)


@pytest.mark.parametrize(
    "text",
    [
        f"source: {{uri: a, storage_options: {SECRET}}}",
        f"source: {{uri: a, storage_options: [{SECRET}]}}",
        f"source: {{uri: a, storage_options: {{key: *{SECRET}}}}}",
        f"source: {{uri: a, storage_options: {{key: !{SECRET} x}}}}",
        f"source: {{uri: a, storage_options: {{key: '{SECRET}}}}}",
    ],
)
def test_errors_never_quote_a_secret(text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(text=text, tmp_path=tmp_path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_storage_options_enter_no_digest():
    with_secret, without = load("source.storage_options.key=x"), load()
    assert with_secret.run_digest() == without.run_digest()
    assert with_secret.digest("profile") == without.digest("profile")


@pytest.mark.parametrize(
    "override", ["name=x", "cluster.workers=2", "work.keep=true", "output.uri=elsewhere"]
)
def test_what_changes_no_result_enters_no_digest(override):
    assert load(override).run_digest() == load().run_digest()
    assert load(override).result_dict() == load().result_dict()


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("source.uri=other", {"profile"}),
        ("source.exclude=a", {"profile"}),
        ("source.keep=a", {"profile", "assign"}),
        ("source.label=a", {"profile", "assign"}),
        ("source.weight=a", {"profile", "shards"}),
        ("source.domain=a", {"profile", "shards"}),
        ("prepare.scaling=minmax", {"shards"}),
        ("model.n_clusters=4", {"train"}),
        ("train.restarts=1", {"train"}),
        ("train.rows=100", {"shards", "train"}),
        ("evaluate.silhouette_rows=100", {"shards", "assign", "evaluate"}),
        ("evaluate.references=all", {"assign", "evaluate"}),
        ("seed=1", {"shards", "train", "assign", "evaluate"}),
    ],
)
def test_each_key_enters_the_digests_of_the_stages_it_matters_to(override, stages):
    other, base = load(override), load()
    changed = {
        stage
        for stage in ("profile", "shards", "train", "assign", "evaluate", "report")
        if other.digest(stage) != base.digest(stage)
    }
    assert changed == stages
    assert other.run_digest() != base.run_digest()


def test_digest_does_not_depend_on_how_a_value_was_written():
    assert load("model.beta=1").run_digest() == load("model.beta=1.0").run_digest()
    assert load("source.keep=id").run_digest() == load("source.keep=[id]").run_digest()


def test_templates():
    config = load("name=night", "output.uri='runs/{name}/{date}-{time}-{digest}'")
    resolved = config.resolve_templates(datetime(2026, 1, 2, 3, 4, 5))
    assert resolved.output.uri == f"runs/night/2026-01-02-030405-{config.run_digest()[:12]}"
    assert resolved.work_folder() == resolved.output.uri + "/_work"
    assert resolved.run_digest() == config.run_digest()
    elsewhere = load("work.uri='/scratch/{name}'", "name=night")
    # A folder of this output's own: the folder named may hold other things and serve other runs.
    work = elsewhere.resolve_templates(datetime(2026, 1, 2)).work_folder()
    assert work.startswith("/scratch/night/clam_dist-night-")
    other = load("work.uri='/scratch/{name}'", "name=night", "output.uri=other")
    assert other.resolve_templates(datetime(2026, 1, 2)).work_folder() != work
    with pytest.raises(ConfigError, match=r"output\.uri: unknown placeholder \{dat\}"):
        load("output.uri='x/{dat}'").resolve_templates(datetime(2026, 1, 2))


def test_config_from_dict_round_trips_what_it_shows():
    config = config_from_dict(MINIMAL)
    assert config_from_dict(config.public_dict()) == config
    with pytest.raises(ConfigError, match=r"model\.n_clusters: required"):
        config_from_dict({"source": {"uri": "a"}})


def test_config_never_changes():
    with pytest.raises(ValueError, match="frozen"):
        config_from_dict(MINIMAL).model.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), (7, 7), ("2 GiB", 2 * 1024**3), ("1.5MB", 1_500_000), ("3kb", 3000), ("4 B", 4)],
)
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1 XB", None, True, 1.5, "1..5 MB", "nan"])
def test_parse_bytes_refuses(text):
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)


def test_nearest_key_prefers_its_own_section():
    known = ["source", "source.uri", "work", "work.uri", "train", "train.rows"]
    assert nearest_key("work.url", known) == "work.uri"
    assert nearest_key("source.rows", known) == "train.rows"
    assert nearest_key("work.quite_other", known) is None


@given(st.floats(min_value=1e-12, max_value=1e12), st.integers(0, 2**63 - 1))
def test_numbers_keep_every_digit_as_text_or_number(beta, seed):
    config = load(f"model.beta={beta!r}", f"seed={seed}")
    assert config.model.beta == beta
    assert config.seed == seed
    assert isinstance(config, Config)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(["model.beta", "source.keep", "source.label", "cluster.memory_limit"])


@given(KEYS, JSON_LIKE)
def test_any_value_anywhere_gives_a_config_or_an_error_naming_its_key(key, value):
    section, leaf = key.split(".")
    values = {**MINIMAL, section: {**MINIMAL.get(section, {}), leaf: value}}
    said = key
    try:
        config_from_dict(values)
    except ConfigError as error:
        said = str(error)
    assert key in said
