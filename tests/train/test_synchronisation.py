"""A training step asks the device for nothing: the host never waits within a round."""

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clam_dist.launch.collectives import LocalCollective
from clam_dist.models.clam import ClAM
from clam_dist.train.members import plan_members
from clam_dist.train.population import build_group
from clam_dist.train.step import batch_sums

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique")


class Waits(TorchDispatchMode):
    """Records the operations whose result the host must wait for on a GPU."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        if name in WAITS:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


def test_the_recorder_sees_a_wait():
    with Waits() as waits:
        float(torch.ones(()))
    assert waits.seen == ["_local_scalar_dense"]


def test_a_step_on_complete_rows_never_waits():
    generator = np.random.default_rng(0)
    groups = []
    for objective in ("masked", "unmasked"):
        members = plan_members(
            n_clusters=[3],
            steps=[4],
            objectives=[objective],
            mask_rates=[0.3],
            betas=[0.5, 1.0],
            learning_rates=[0.05],
            restarts=1,
            inertia={3: 1.0},
        )
        start = torch.from_numpy(generator.normal(size=(2, 3, 6)).astype(np.float32))
        model = ClAM(3, 4, objective=objective, mask_rate=0.3, mask_value=np.zeros(6))
        groups.append(build_group(members, model, {"prototypes": start}))
    x = generator.normal(size=(256, 6)).astype(np.float32)
    weight = generator.random(256)
    before = [group.parameters["prototypes"].clone() for group in groups]
    with Waits() as waits:
        sums = batch_sums(
            groups,
            [(0, x, weight)],
            lanes=1,
            key=(1, 0, 0),
            has_missing=False,
            device=torch.device("cpu"),
            collective=LocalCollective(threads=1, send=print),
            pool=None,
        )
        for group, total in zip(groups, sums, strict=True):
            group.update(total)
    assert waits.seen == []
    for group, old in zip(groups, before, strict=True):
        assert not torch.equal(group.parameters["prototypes"], old)
