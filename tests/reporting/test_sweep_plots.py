"""Which plots a sweep gets, and that their points lie where the figures say."""

import re
import xml.etree.ElementTree as ET

from clam_dist.reporting.sweep_plots import BY_CLUSTERS, sweep_plots

BASELINES = {str(k): {"silhouette": 0.1 * k, "standard_error": 0.01} for k in (2, 3)}


def member(k, beta, silhouette, objective="masked", steps=10, full=True):
    return {
        "n_clusters": k,
        "steps": steps,
        "beta": beta,
        "objective": objective,
        "silhouette": silhouette,
        "standard_error": 0.02,
        "full": full,
    }


def titles(members, selected, baselines=BASELINES):
    return [title for title, _ in sweep_plots(members, baselines, selected)]


def test_only_settings_that_vary_are_drawn():
    selected = {"n_clusters": 3, "steps": 10}
    one = [member(3, 0.5, 0.2)]
    only = {"3": BASELINES["3"]}
    assert titles(one, selected, only) == []
    assert titles([*one, member(3, 1.0, 0.3)], selected, only) == ["Inverse temperature β"]
    assert titles([*one, member(2, 1.0, 0.3)], selected) == [BY_CLUSTERS]
    assert titles([*one, member(3, 0.5, 0.3, steps=5)], selected, only) == ["Steps T"]
    # A candidate that leaves clusters empty, or has no score, is no point.
    assert titles([*one, member(3, 1.0, 0.9, full=False)], selected, only) == []
    assert titles([*one, member(3, 1.0, None)], selected, only) == []
    # Numbers of clusters that k-means alone ruled out are part of the curve.
    assert titles(one, selected, BASELINES) == [BY_CLUSTERS]


def test_the_best_of_each_setting_is_the_point_and_higher_is_higher():
    members = [member(3, 0.5, 0.2), member(3, 0.5, 0.25), member(3, 2.0, 0.1)]
    ((_, svg),) = sweep_plots(members, {"3": BASELINES["3"]}, {"n_clusters": 3, "steps": 10})
    ET.fromstring(svg)
    circles = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    assert len(circles) == 2
    (left, high), (right, low) = circles
    assert left < right
    assert high < low  # SVG counts downwards
    assert "Best silhouette 0.250 at Inverse temperature β 0.5" in svg
    assert "stroke-dasharray" in svg  # k-means


def test_each_objective_is_a_line_with_its_name():
    members = [member(k, 1.0, 0.1 * k, o) for k in (2, 3) for o in ("masked", "unmasked")]
    ((title, svg),) = sweep_plots(members, BASELINES, {"n_clusters": 3, "steps": 10})
    assert title == BY_CLUSTERS
    for name in ("masked", "unmasked", "k-means"):
        assert f">{name}<" in svg
