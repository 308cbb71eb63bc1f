"""The sweep as a plain list, and its groups."""

from clam_dist.train.members import AUTO_SCALES, group_members, plan_members


def plan(**changes):
    settings = {
        "n_clusters": [3],
        "steps": [10],
        "objectives": ["masked", "unmasked"],
        "mask_rates": [0.15],
        "betas": None,
        "learning_rates": None,
        "restarts": 4,
        "inertia": {3: 2.0, 5: 1.0},
    }
    return plan_members(**(settings | changes))


def test_auto_spans_scales_objectives_and_restarts():
    members = plan()
    assert len(members) == 2 * len(AUTO_SCALES) * 4
    assert [m.index for m in members] == list(range(len(members)))
    assert [m.start for m in members[:4]] == ["kmeans", "kmeans", "normal", "rows"]
    assert min(AUTO_SCALES) == 0.05
    assert max(AUTO_SCALES) == 32
    for m in members:
        assert abs(m.beta * 2.0 - m.scale) < 1e-12
        assert (m.mask_rate > 0) == (m.objective == "masked")


def test_lists_multiply_and_mask_rates_do_not_touch_the_unmasked():
    members = plan(n_clusters=[3, 5], betas=[0.1], mask_rates=[0.1, 0.2], restarts=1)
    masked = [m for m in members if m.objective == "masked"]
    assert len(masked) == 4
    assert len(members) - len(masked) == 2


def test_groups_hold_equal_settings_and_every_member_once():
    members = plan(n_clusters=[3, 5])
    groups = group_members(members, 1024)
    assert sorted(m.index for g in groups for m in g) == [m.index for m in members]
    for group in groups:
        assert len(group) <= max(16, 65_536 // (group[0].n_clusters * 1024))
        assert len({(m.n_clusters, m.steps, m.objective, m.mask_rate) for m in group}) == 1
    assert len(group_members(members, 8)) < len(groups)  # few rows: more of a setting go together
