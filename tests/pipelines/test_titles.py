from __future__ import annotations

from clam_dist.config import config_from_dict
from pipelines.titles import shown, title, verdict


def test_a_title_says_what_is_done_to_what_without_secrets() -> None:
    config = config_from_dict(
        {
            "source": {"uri": "s3://key:secret@bucket/{x}.parquet"},
            "model": {"n_clusters": 3},
            "output": {"uri": "runs/a"},
        }
    )
    assert title("profile", config) == "profile s3://bucket/{x}.parquet"
    assert title("assign", config) == "label s3://bucket/{x}.parquet into runs/a/labels"
    assert title("later", config) == "later s3://bucket/{x}.parquet"


def test_only_a_user_is_hidden() -> None:
    assert shown("data/a@b.parquet") == "data/a@b.parquet"
    assert shown("s3://bucket/a@b.parquet") == "s3://bucket/a@b.parquet"


def test_the_verdict_is_one_line() -> None:
    metrics = {
        "n_rows": 1_000_000,
        "n_clusters": 9,
        "n_used": 8,
        "silhouette": {"value": 0.12345, "standard_error": 0.00067},
    }
    assert verdict(metrics, "runs/a") == (
        "silhouette 0.1235 ± 0.0007, 8 of 9 clusters in use, 1,000,000 rows; runs/a"
    )
    assert verdict(metrics | {"silhouette": None}, "runs/a").startswith("no silhouette, 8 of 9")
