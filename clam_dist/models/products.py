"""The two large products of a training step, at the precision asked for.

Only the products of rows with prototypes (forward) and of adjoints with rows (backward) touch all
``d`` features; the recursion between them is small and stays in the rows' own dtype. Lowering these
two therefore buys nearly all the speed that tensor cores have to give.

``float32``
    Products in the rows' dtype.
``tf32``
    On CUDA devices the operands are rounded to 10 bits of mantissa inside the product. No effect on
    a CPU.
``bfloat16``
    The operands are rounded to 7 bits of mantissa, sums are kept in float32. On a CPU the rounding
    is the same, so that results can be studied there, and nothing is gained in speed.

Rounding errors are relative to ``‖x‖ ‖ρ‖``, so rows far from the origin lose most: centre them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from clam_dist.errors import ConfigError

Precision = Literal["float32", "tf32", "bfloat16"]

_SWITCH = threading.Lock()


def check_precision(precision: str) -> None:
    """Refuse a precision that is not one of the three."""
    if precision not in get_args(Precision):
        raise ConfigError(
            f"model.precision: {precision!r} is unknown; use {', '.join(get_args(Precision))}"
        )


def lower(values: Tensor, precision: Precision) -> Tensor:
    """``values`` as the products take them: rounded to bfloat16 where asked, else as they are.

    On a CUDA device float32 comes back in bfloat16; elsewhere the dtype stays and the values are
    rounded, because a CPU's product in bfloat16 would round the sums as well.
    """
    if precision != "bfloat16":
        return values
    rounded = values.to(torch.bfloat16)
    tensor_cores = values.is_cuda and values.dtype == torch.float32
    return rounded if tensor_cores else rounded.to(values.dtype)


def add_product(
    base: Tensor, left: Tensor, right: Tensor, precision: Precision, out: Tensor
) -> None:
    """``out ← base + left right``.

    Parameters
    ----------
    base : Tensor
        Broadcasts to ``(p,r)``; may be ``out`` itself.
    left, right : Tensor (p,q), (q,r)
        Both as :func:`lower` returns them.
    precision : {'float32', 'tf32', 'bfloat16'}
    out : Tensor (p,r)
        In the dtype in which sums are kept.
    """
    if left.dtype != out.dtype:  # tensor cores: bfloat16 operands, float32 sums
        torch.add(torch.mm(left, right, out_dtype=out.dtype), base, out=out)
        return
    if precision == "tf32" and out.is_cuda:
        with _tensor_float():
            torch.addmm(base, left, right, out=out)
        return
    torch.addmm(base, left, right, out=out)


@contextmanager
def _tensor_float() -> Iterator[None]:
    """TF32 products on CUDA devices while it lasts; the process's setting is put back.

    PyTorch has no switch for one call or one thread. What other threads launch in the meantime may
    take TF32 too, so give a training thread its own process where that matters.
    """
    matmul = torch.backends.cuda.matmul
    # Before torch 2.9 there is only the older name; reading both in one process is an error there.
    name, value = ("fp32_precision", "tf32")
    if not hasattr(torch.backends, "fp32_precision"):
        name, value = ("allow_tf32", True)  # type: ignore[assignment]
    with _SWITCH:
        before = getattr(matmul, name)
        setattr(matmul, name, value)
        try:
            yield
        finally:
            setattr(matmul, name, before)
