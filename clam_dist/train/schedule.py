"""How long and how fast to train: automatic sizes, and the plateau rule for the learning rate.

Everything here is a function of rows, features, clusters and the config alone, never of workers
or memory, so that the same config gives the same model everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MICRO_BATCH_ROWS = 2048
"""Rows of a micro-batch: two threads then train 1.2 times as fast as at 1024 (14 features); at 4096
it is 1.5 times, but a batch of 8192 would then keep only two ranks busy."""
MAX_LANES = 64
FINALISTS = 4
"""Members (for each number of clusters) that go from the search on to train on all rows."""
LEARNING_RATE = 0.03
"""Adam's first step length in scaled units."""
ROUND_STEPS = 128
"""Steps after which a long epoch is judged by its validation loss, as a short one is at its end."""


def power_of_two(value: float) -> int:
    """The power of two nearest below ``value``, at least 1."""
    return 1 << max(0, int(value).bit_length() - 1) if value >= 1 else 1


def auto_batch_rows(n_rows: int) -> int:
    """Rows of a global batch: about 1/64 of the rows, between 16 and 65 536, a power of two."""
    return min(max(power_of_two(n_rows / 64), 16), 65_536)


def lanes_of(batch_rows: int) -> int:
    """Micro-batches of a global batch: a power of two, about ``MICRO_BATCH_ROWS`` rows each."""
    return min(power_of_two(batch_rows / MICRO_BATCH_ROWS), MAX_LANES)


def auto_epochs(n_rows: int, batch_rows: int, *, searched: bool, steps: int | None = None) -> int:
    """Passes over all rows at the most; the plateau rule ends training sooner.

    Members that a search has brought near their end need few more steps than a fresh start, unless
    their model says otherwise with ``steps``.
    """
    steps = steps or (200 if searched else 1600)
    per_epoch = max(1, -(-n_rows // batch_rows))
    return min(max(-(-steps // per_epoch), 2), 200)


@dataclass
class Plateau:
    """One learning rate for each member, lowered when its validation loss stops falling.

    ClAM's training rule (section 5 and appendix B of the paper): the rate times 0.8 when the loss
    has not improved for 5 epochs, stop at a floor. The threshold here is relative, so that it
    does not depend on the number of features or rows.

    Parameters
    ----------
    rates
        ``(P,)`` float64, the first rates.
    patience
        Rounds without improvement before the rate is lowered.
    factor, threshold, floor
        Multiplier; relative improvement that counts; share of the first rate at which to stop.
    """

    rates: np.ndarray
    patience: int = 2
    factor: float = 0.5
    threshold: float = 1e-3
    floor: float = 0.05

    def __post_init__(self) -> None:
        self.first = self.rates.copy()
        self.best = np.full(self.rates.shape, np.inf)
        self.waited = np.zeros(self.rates.shape, dtype=np.int64)

    def observe(self, losses: np.ndarray) -> np.ndarray:
        """Take one round's losses ``(P,)``; return which members are at their best so far."""
        better = losses < self.best * (1 - self.threshold)
        improved = losses < self.best
        self.best = np.minimum(losses, self.best)
        self.waited = np.where(better, 0, self.waited + 1)
        lower = self.waited >= self.patience
        self.rates = np.where(lower, self.rates * self.factor, self.rates)
        self.waited[lower] = 0
        return improved

    @property
    def stopped(self) -> np.ndarray:
        """``(P,)`` bool: the rate has reached its floor; such a member moves no more."""
        return self.rates < self.first * self.floor

    def keep(self, chosen: np.ndarray) -> None:
        """Drop all members but ``chosen`` (indices)."""
        for name in ("rates", "first", "best", "waited"):
            setattr(self, name, getattr(self, name)[chosen])

    def state(self) -> dict[str, list[float]]:
        """The rule's memory as JSON, for a checkpoint."""
        names = ("rates", "first", "best", "waited")
        return {name: getattr(self, name).tolist() for name in names}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Take up the memory that :meth:`state` gave."""
        for name, values in state.items():
            dtype = np.int64 if name == "waited" else np.float64
            setattr(self, name, np.asarray(values, dtype=dtype))
