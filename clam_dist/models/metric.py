"""A learned metric: distances ``‖M (ρ - x)‖`` in place of ``‖ρ - x‖``, one ``M`` a member.

Where distances in the recursion are measured after a linear map, rows and prototypes mapped alike,
the recursion in the mapped space is the Euclidean one of Saha et al. (ICML 2023). Mapped back it is
the step ``x ← x + α (w R - x)`` as ever, under shares that see the metric:

    w = softmax(-β (ρ - x)' W (ρ - x)) = softmax(2 β x W R' - β diag(R W R')) ,   W = M' M

so prototypes stay in the rows' own units, and in k-space nothing changes but ``2 β R`` to
``2 β R W`` and ``g``.

The loss is measured by the metric as well, ``f(M (x - x_T))``, and the determinant of ``M`` is 1:
else ``M`` would shrink, and the loss with it, with nothing learnt. What is left for ``M`` to do is
to make the differences round, as for the clusters' common covariance (Gustafson and Kessel 1978):
with squares the least loss is the ``d``-th root of the determinant of ``Σ (x - x_T)(x - x_T)'``. A
loss in the rows' own space teaches the opposite, since there the long side of elongated clusters
costs most: on three such clusters side by side, turned by 30°, the agreement with the truth was .02
to .29 under it and .96 under this one (adjusted Rand index; .03 for k-means).

Letters as in :mod:`clam_dist.models.dynamics`; rows are lines, which ``M`` maps to
``x F``, ``F = M'``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clam_dist.models.products import Precision, add_product, lower
from clam_dist.models.robust import Penalty
from clam_dist.models.sums import Prototypes, blocks

Form = Literal["none", "diagonal", "full"]

BLOCK_ROWS = 2048
"""Rows of a map's products. Shorter blocks are padded: a product's digits depend on its shape."""


def initial_metric(form: Form, members: int, width: int) -> Tensor:
    """The parameter ``metric`` of the Euclidean distance, which is all zeros.

    Returns
    -------
    Tensor (P,d) or (P,d,d) float32
        See :func:`unit_factor`.
    """
    shape = (members, width) if form == "diagonal" else (members, width, width)
    return torch.zeros(shape)


def unit_factor(metric: Tensor) -> Tensor:
    """The map of each member, of determinant 1.

    Parameters
    ----------
    metric : Tensor (P,d) or (P,d,d)
        Logarithms of the features' scales; or a lower triangle with the logarithms of its diagonal
        on the diagonal, and anything above it. The mean of the logarithms has no effect.

    Returns
    -------
    Tensor (P,d) or (P,d,d)
        The scales; or the lower triangle ``F``.
    """
    if metric.dim() == 2:
        return _scales(metric)
    return torch.diag_embed(_scales(metric.diagonal(dim1=1, dim2=2))) + metric.tril(-1)


def _scales(logarithms: Tensor) -> Tensor:
    return (logarithms - logarithms.mean(1, keepdim=True)).exp()


def apply_factor(x: Tensor, factor: Tensor) -> Tensor:
    """Lines ``x (P,…,d)`` mapped by ``factor`` as of :func:`unit_factor`: ``x F``."""
    return x * factor.unsqueeze(1) if factor.dim() == 2 else torch.matmul(x, factor)


def map_rows(x: Tensor, factor: Tensor) -> Tensor:
    """Rows ``x (B,d)`` mapped by one member's ``factor``, ``(d,)`` or ``(d,d)``.

    A row's digits do not depend on which rows it comes with: a full map takes them through blocks
    of one fixed size.
    """
    if factor.dim() == 1:
        return x * factor
    found = torch.empty_like(x)
    for rows in blocks(len(x), BLOCK_ROWS):
        padded = x.new_zeros((BLOCK_ROWS, x.shape[1]))
        padded[: rows.stop - rows.start] = x[rows]
        found[rows] = (padded @ factor)[: rows.stop - rows.start]
    return found


class Warped(Prototypes):
    """Prototypes that measure by their member's metric, or plainly where there is none.

    Parameters
    ----------
    prototypes, beta, log_epsilon, precision
        As of :class:`~clam_dist.models.sums.Prototypes`.
    metric : Tensor (P,d) or (P,d,d), optional
        See :func:`unit_factor`.

    Attributes
    ----------
    by_scaled : Tensor (P,k,d)
        Gradient by ``scaled = 2 β R W`` in the making; ``gradient`` is that by ``R`` elsewhere.
    """

    def __init__(
        self,
        prototypes: Tensor,
        beta: Tensor,
        log_epsilon: Tensor | None = None,
        precision: Precision = "float32",
        metric: Tensor | None = None,
    ) -> None:
        super().__init__(prototypes, beta, log_epsilon, precision)
        self.by_scaled = torch.zeros_like(self.rows)
        self.factor = None if metric is None else unit_factor(metric)
        # By the logarithms of scales, or by F, of the loss at fixed differences; half of it.
        self._explicit = None if self.factor is None else torch.zeros_like(self.factor)
        if self.factor is None:
            return
        self._mapped = apply_factor(self.rows, self.factor)
        self.scaled = 2.0 * self.beta * self._back(self._mapped)
        self.offset = -self.beta[:, :, 0] * self._mapped.square().sum(-1)
        if log_epsilon is not None:
            self.offset = self.offset + log_epsilon
        self._lowered = lower(self.scaled.view(-1, self.width), precision)

    def _back(self, mapped: Tensor) -> Tensor:
        """``mapped F'``: what is left to do of ``x W`` after ``x F``."""
        assert self.factor is not None
        if self.factor.dim() == 2:
            return mapped * self.factor.unsqueeze(1)
        return torch.matmul(mapped, self.factor.mT)

    def project(self, x: Tensor, out: Tensor) -> None:
        """``out (P,k,B) ← R x'`` of rows ``x (B,d)``."""
        flat = lower(self.rows.view(-1, self.width), self.precision)
        into = out.view(-1, len(x))
        add_product(out.new_zeros((1, 1)), flat, self.lower(x).T, self.precision, into)

    def measure(self, error: Tensor, penalty: Penalty, weight: Tensor | None) -> Tensor:
        """The cost of differences by the metric, and half its derivative in their place.

        Parameters
        ----------
        error : Tensor (P,B,d)
            In the rows' own space.
        penalty : Penalty
            Of the difference of images.
        weight : Tensor (B,1), optional

        Returns
        -------
        Tensor (P,) float64
        """
        if self.factor is None or self._explicit is None:
            return penalty(error, weight)
        image = apply_factor(error, self.factor)
        pull = image.clone()
        loss = penalty(pull, weight)
        if self.factor.dim() == 2:
            self._explicit += (image * pull).sum(1)
        else:
            self._explicit.baddbmm_(error.mT, pull)
        error.copy_(self._back(pull))
        return loss

    def measure_columns(
        self, error: Tensor, columns: Tensor | None, penalty: Penalty, weight: Tensor | None
    ) -> Tensor:
        """As :meth:`measure`, features first and one scale for each.

        Parameters
        ----------
        error : Tensor (groups,P,h,B)
        columns : Tensor (groups,h) int64, optional
            Which features each group has; all of them by default.
        """
        if self.factor is None or self._explicit is None:
            return penalty(error, weight)
        scales = self.factor if columns is None else self.factor[:, columns].transpose(0, 1)
        scales = scales.unsqueeze(-1)
        image = error * scales
        error.copy_(image)
        loss = penalty(error, weight)
        learnt = image.mul_(error).sum(-1)  # (groups,P,h)
        if columns is None:
            self._explicit += learnt.sum(0)
        else:
            lines = learnt.transpose(1, 2).reshape(-1, self.members)
            self._explicit.T.index_add_(0, columns.reshape(-1), lines)
        error.mul_(scales)
        return loss

    def gradients(self) -> dict[str, Tensor]:
        """By name, with ``metric`` where there is one."""
        offset = self.offset_gradient.unsqueeze(-1)
        # The product of both with W is the gradient by R through the logits.
        through = 2.0 * self.beta * (self.by_scaled - offset * self.rows)
        found = {}
        if self.factor is None:
            found["prototypes"] = self.gradient + through
        else:
            through_rows = self._back(apply_factor(through, self.factor))
            found["prototypes"] = self.gradient + through_rows
            found["metric"] = self._by_metric(through + self.beta * offset * self.rows)
        if self.weighted:
            found["log_epsilon"] = self.offset_gradient
        return found

    def _by_metric(self, lines: Tensor) -> Tensor:
        """From ``∂/∂W = R' lines``, symmetrised, to the parameter; ``W`` is never formed."""
        assert self.factor is not None
        assert self._explicit is not None
        image = apply_factor(lines, self.factor)
        if self.factor.dim() == 2:  # scale · ∂/∂scale
            found = 2.0 * ((image * self._mapped).sum(1) + self._explicit)
            return found - found.mean(1, keepdim=True)
        by_factor = torch.matmul(self.rows.mT, image) + torch.matmul(lines.mT, self._mapped)
        by_factor = by_factor + 2.0 * self._explicit
        logarithms = by_factor.diagonal(dim1=1, dim2=2) * self.factor.diagonal(dim1=1, dim2=2)
        logarithms = logarithms - logarithms.mean(1, keepdim=True)
        return by_factor.tril(-1) + torch.diag_embed(logarithms)
