"""The coupling of rows that hide for themselves, each with a matrix of its own.

With prototypes ``R`` measured from ``v`` and a row's moving features ``m̄`` its matrix is
``2 β Σ_f m̄_f ρ_μf ρ_νf``. For all rows at once these come from one product of the masks with the
pair products ``ρ_μ ⊙ ρ_ν`` ``(k(k+1)/2, d)``; the recursion then takes ``k²`` multiply-adds a row
and step, whatever ``d``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clam_dist.models.couplings import CarriesMixture
from clam_dist.models.sums import SPACE
from clam_dist.models.workspace import Workspace

PAIR_ELEMENTS = 1 << 25
"""Most numbers that the pair products of all members may be."""


def pairs_are_cheaper(members: int, k: int, width: int, steps: int) -> bool:
    """The cost model of rows' own couplings: pair products, or the factors one after the other.

    In nanoseconds a row and member, ``d (6 + .025 k²) + k² (6 + 1.5 T)`` for pairs and
    ``d (6 + 2.4 T + .14 k T)`` for factors (fitted on one CPU thread to d 30 … 784, k 3 … 30,
    T 3 … 15; no wrong choice there costs more than a sixth).
    """
    if members * k * (k + 1) // 2 * width > PAIR_ELEMENTS:
        return False
    return k * k * (width + 60 * steps + 240) < width * steps * (96 + 5.6 * k)


class Pairs:
    """Pair products of prototypes measured from ``v``, and their gradient in the making.

    Parameters
    ----------
    scaled, rows : Tensor (P,k,d)
        ``2 β R`` and ``R``.
    """

    def __init__(self, scaled: Tensor, rows: Tensor) -> None:
        _, k, width = rows.shape
        self.rows = rows
        upper = torch.triu_indices(k, k, device=rows.device)
        self.first, self.second = upper[0], upper[1]
        # Where the full k × k table finds each of its entries among the k (k+1)/2 pairs.
        table = torch.empty((k, k), dtype=torch.int64, device=rows.device)
        numbers = torch.arange(upper.shape[1], device=rows.device)
        table[self.first, self.second] = numbers
        table[self.second, self.first] = numbers
        self.table = table.view(-1)
        left = scaled.index_select(1, self.first)
        self.values = (left * rows.index_select(1, self.second)).view(-1, width)
        self.gradient = torch.zeros_like(self.values)
        self.explicit = torch.zeros_like(rows)

    def couple(self, moving: Tensor) -> PairCoupling:
        """The coupling of rows with the masks ``moving (B,d)`` in {0, 1}."""
        return PairCoupling(self, moving)

    def gradients(self, alpha: float) -> tuple[Tensor, Tensor]:
        """As of a coupling; both factors are one set of rows, so all is put under the first."""
        members, k, width = self.rows.shape
        pairs = self.gradient.view(members, -1, width).index_select(1, self.table)
        found = (pairs.view(members, k, k, width) * self.rows.unsqueeze(1)).sum(2)
        return alpha * found, self.explicit


class PairCoupling(CarriesMixture):
    """One block of rows under :class:`Pairs`; :meth:`finish` hands over what it has learnt."""

    def __init__(self, pairs: Pairs, moving: Tensor) -> None:
        super().__init__(pairs.rows)
        self._pairs, self._moving = pairs, moving
        members, k, _ = pairs.rows.shape
        rows = len(moving)
        half = SPACE.take("pairs", (len(pairs.values), rows), moving)
        torch.mm(pairs.values, moving.T, out=half)
        shape = (members, k * k, rows)
        full = SPACE.take("gram", shape, moving)
        torch.index_select(half.view(members, -1, rows), 1, pairs.table, out=full)
        self._gram = full.view(members, k, k, rows)
        self._product = SPACE.take("gram_product", shape, moving).view(self._gram.shape)
        self._gradient = SPACE.take("gram_gradient", shape, moving).view(self._gram.shape).zero_()

    def _times(self, lines: Tensor, out: Tensor) -> Tensor:
        """Each row's matrix times its column of ``lines (P,k,B)``."""
        torch.mul(self._gram, lines.unsqueeze(1), out=self._product)
        return torch.sum(self._product, 2, out=out)

    def displacement(self, carry: Tensor, space: Workspace) -> Tensor:
        """``C' R`` a row, ``(P,B,d)``: as the rows lie, nothing has to be turned."""
        shape = (len(carry), carry.shape[2], self._right.shape[2])
        return torch.bmm(carry.mT, self._right, out=space.take("residual", shape, carry))

    def adjoin(self, error: Tensor, carry: Tensor, space: Workspace) -> Tensor:
        """As elsewhere, of an error ``(P,B,d)``."""
        return super().adjoin(error.mT, carry, space)

    def logits(self, start: Tensor, keep: float, carry: Tensor, out: Tensor) -> Tensor:
        return self._times(carry, out).add_(start, alpha=keep)

    def pull(
        self,
        error: Tensor,
        trail: Tensor,
        shares: Tensor,
        _carry: Tensor,
        adjoint: Tensor,
        alpha: float,
        /,
    ) -> None:
        self._gradient.addcmul_(trail.unsqueeze(2), shares.unsqueeze(1), value=alpha)
        back = self._times(error, SPACE.take("gram_back", error.shape, error))
        adjoint.mul_(1.0 - alpha).add_(back, alpha=alpha)

    def finish(self) -> None:
        """Fold the rows' gradients to pairs, and hand them to :class:`Pairs`."""
        pairs, moving = self._pairs, self._moving
        both = torch.add(self._gradient, self._gradient.transpose(1, 2), out=self._product)
        k = both.shape[1]
        upper = both.view(len(both), k * k, -1).index_select(1, pairs.first * k + pairs.second)
        pairs.gradient.addmm_(upper.view(len(pairs.values), -1), moving)
        if self._explicit is not None:
            pairs.explicit += self._explicit
