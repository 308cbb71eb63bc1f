"""Hidden columns of groups of rows: gathered from rows and prototypes, and put back.

Letters as in :mod:`clam_dist.models.dynamics`; ``h`` hidden columns, ``n = groups · P``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from clam_dist.models.sums import blocks
from clam_dist.models.workspace import Workspace


def group_blocks(rows: int, group_rows: int, most_rows: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows with their groups: whole groups of ``group_rows``, then the short last one.

    Yields
    ------
    rows, groups : slice
        Of at most ``most_rows`` rows, and at least one group.
    """
    whole = rows // group_rows
    for groups in blocks(whole, max(1, most_rows // group_rows)):
        yield slice(groups.start * group_rows, groups.stop * group_rows), groups
    if whole * group_rows < rows:
        yield slice(whole * group_rows, rows), slice(whole, whole + 1)


def hidden_part(x: Tensor, hidden: Tensor, space: Workspace) -> Tensor:
    """Hidden columns of rows, features first.

    Parameters
    ----------
    x : Tensor (B,d)
        Whole groups of equal size.
    hidden : Tensor (groups,h) int64
        Hidden columns, each once, of each group.
    space : Workspace
        Where the result is.

    Returns
    -------
    Tensor (groups,h,rows)
        ``x_H``.
    """
    groups, h = hidden.shape
    rows = len(x) // groups
    index = hidden.unsqueeze(1).expand(groups, rows, h)
    cube = x.view(groups, rows, -1)
    picked = torch.gather(cube, 2, index, out=space.take("picked", index.shape, x))
    return space.take("hidden", (groups, h, rows), x).copy_(picked.transpose(1, 2))


def shown_part(x: Tensor, hidden: Tensor, space: Workspace) -> Tensor:
    """Rows ``(B,d)`` with 0 in their hidden columns, as scratch."""
    groups, h = hidden.shape
    rows = len(x) // groups
    shown = space.take("shown", (groups, rows, x.shape[1]), x)
    shown.copy_(x.view(shown.shape))
    return shown.scatter_(2, hidden.unsqueeze(1).expand(groups, rows, h), 0.0).view(x.shape)


class Columns:
    """Columns of the prototypes, and their gradient in the making.

    Parameters
    ----------
    rows : Tensor (P,k,d)
        Prototypes, contiguous.
    """

    def __init__(self, rows: Tensor) -> None:
        self._members, self._count, width = rows.shape
        # Feature-major, so that a hidden column is one contiguous line of P·k numbers.
        self._lines = rows.view(-1, width).T.contiguous()
        self._gradient = torch.zeros_like(self._lines)

    def take(self, hidden: Tensor) -> Tensor:
        """Columns ``hidden (groups,h)`` as ``R_H'``, shape ``(n,h,k)``."""
        groups, h = hidden.shape
        shape = (groups, h, self._members, self._count)
        picked = self._lines.index_select(0, hidden.reshape(-1)).view(shape)
        return picked.transpose(1, 2).reshape(-1, h, self._count)

    def learn(self, hidden: Tensor, gradient: Tensor) -> None:
        """Add the gradient ``(n,h,k)`` by what :meth:`take` gave for ``hidden``."""
        groups, h = hidden.shape
        shape = (groups, self._members, h, self._count)
        lines = gradient.reshape(shape).transpose(1, 2).reshape(groups * h, -1)
        self._gradient.index_add_(0, hidden.reshape(-1), lines)

    def gradient(self) -> Tensor:
        """All that was learnt, ``(P,k,d)``."""
        return self._gradient.T.reshape(self._members, self._count, -1)


def by_group(lines: Tensor, groups: int, out: Tensor) -> Tensor:
    """``(P,k,B)`` to ``(n,k,rows)``, into ``out`` of that many elements."""
    members, count, total = lines.shape
    cube = lines.view(members, count, groups, total // groups)
    out.view(groups, members, count, -1).copy_(cube.permute(2, 0, 1, 3))
    return out.view(groups * members, count, -1)


def by_member(lines: Tensor, groups: int, out: Tensor) -> Tensor:
    """``(n,k,rows)`` back to ``(P,k,B)``, into ``out`` of that many elements."""
    count, rows = lines.shape[1:]
    cube = lines.view(groups, -1, count, rows)
    members = cube.shape[1]
    out.view(members, count, groups, rows).copy_(cube.permute(1, 2, 0, 3))
    return out.view(members, count, groups * rows)
