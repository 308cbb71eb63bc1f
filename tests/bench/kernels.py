"""Nanoseconds a row of ClAM's training kernels, beside one Lloyd iteration on the same arrays.

    python tests/bench/kernels.py [--json] [--threads 1] [--members 1] [--seconds 0.5]

Forms: ``kspace`` what clam_dist trains with (forward and hand-written backward), ``direct`` the
recursion in x-space with products and autograd, ``differences`` the same by ``(B,k,d)`` differences
as the paper's code does it, ``lloyd`` one iteration of k-means (labels, sums and counts), the
fastest of three usual ways to write it in torch, over whole batches or blocks; ``lloyd_tuned`` a
fourth way that leaves the labels out. The objectives on the sphere have the form ``kspace`` alone.
``fraction`` is the share of this machine's float32 matrix-product rate, measured in the same run,
that the useful products of ``kspace`` reach.

At one thread the time is the thread's own processor time, so that a busy machine counts less;
the least of many repeats, with the forms taking turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clam_dist.models.couplings import factors_are_cheaper
from clam_dist.models.direct import direct_loss
from clam_dist.models.masked import masked_sums
from clam_dist.models.masks import draw_masks
from clam_dist.models.spherical import spherical_masked_sums, spherical_unmasked_sums
from clam_dist.models.unmasked import unmasked_sums

SHAPES = [(784, 10, 5), (14, 9, 10), (128, 64, 10), (768, 100, 10), (32, 512, 10)]
"""``(d,k,T)``."""

MASK_RATE = 0.15
LLOYD_BLOCK_ROWS = 1024
DIFFERENCES_BYTES = 1 << 30
"""The ``(B,k,d)`` form keeps about three such arrays a step; its batch is cut to fit this."""


Iteration = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""One iteration of k-means: rows and prototypes to the clusters' sums and counts."""


def lloyd_index(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Labels by rows, sums by index."""
    labels = torch.addmm(-0.5 * prototypes.square().sum(1), x, prototypes.T).argmax(1)
    sums = torch.zeros_like(prototypes).index_add_(0, labels, x)
    return sums, torch.bincount(labels, minlength=len(prototypes))


def lloyd_product(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Labels by rows, sums by one product with the indicator."""
    labels = torch.addmm(-0.5 * prototypes.square().sum(1), x, prototypes.T).argmax(1)
    chosen = torch.zeros(len(x), len(prototypes)).scatter_(1, labels.unsqueeze(1), 1.0)
    return chosen.T @ x, chosen.sum(0)


def lloyd_lines(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """Labels along lines of rows, sums by one product."""
    scores = _scores(x, prototypes)
    labels = scores.argmax(0)
    chosen = torch.zeros_like(scores).scatter_(0, labels.unsqueeze(0), 1.0)
    return chosen @ x, chosen.sum(1)


def lloyd_compare(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """The indicator by comparison with the greatest: no labels at all, equals count twice."""
    scores = _scores(x, prototypes)
    chosen = (scores == scores.amax(0)).to(x.dtype)
    return chosen @ x, chosen.sum(1)


def _scores(x: Tensor, prototypes: Tensor) -> Tensor:
    offset = -0.5 * prototypes.square().sum(1, keepdim=True)
    return torch.addmm(offset, prototypes, x.T)


LLOYD: list[Iteration] = [lloyd_index, lloyd_product, lloyd_lines]
TUNED: list[Iteration] = [lloyd_compare]


def in_blocks(form: Iteration, x: Tensor, prototypes: Tensor, rows: int) -> None:
    """An iteration over blocks of ``rows`` rows, which stay in cache between its two products."""
    for part in x.split(rows):
        form(part, prototypes)


def products_loss(
    x: Tensor, prototypes: Tensor, beta: float, alpha: float, steps: int, hidden: Tensor | None
) -> Tensor:
    """The recursion in x-space with products instead of differences; ``hidden (B,d)`` in {0, 1}."""
    state = x if hidden is None else x * (1.0 - hidden)
    offset = beta * prototypes.square().sum(1)
    for _ in range(steps):
        shares = torch.softmax(2.0 * beta * state @ prototypes.T - offset, 1)
        pull = shares @ prototypes - state
        state = state + alpha * (pull if hidden is None else hidden * pull)
    error = (x - state).square()
    return error.sum() if hidden is None else (hidden * error).sum()


def by_autograd(loss: Callable[[Tensor], Tensor], prototypes: Tensor) -> None:
    """Forward and backward of ``loss`` by the prototypes."""
    leaf = prototypes.clone().requires_grad_()
    loss(leaf).backward()


def best_times(
    forms: dict[str, Callable[[], None]], seconds: float, threads: int
) -> dict[str, float]:
    """Least seconds of a call of each form; the forms take turns for ``seconds`` each."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best: dict[str, float] = {}
    for form in forms.values():
        form()
    spent = 0.0
    while spent < seconds * len(forms) or len(best) < len(forms):
        began = time.perf_counter()
        for name, form in forms.items():
            start = clock()
            form()
            best[name] = min(clock() - start, best.get(name, float("inf")))
        spent += time.perf_counter() - began
    return best


def product_rate(size: int, seconds: float, threads: int) -> float:
    """Multiply-adds a second of a square float32 product."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    times = best_times({"product": lambda: torch.mm(left, right, out=out)}, seconds, threads)
    return size**3 / max(times["product"], 1e-9)


def useful_products(d: int, k: int, steps: int, hidden: int | None) -> int:
    """Multiply-adds a row in the products of the k-space form, by the coupling it takes."""
    rank = d if hidden is None else hidden
    if factors_are_cheaper(k, rank):
        return 6 * k * rank * steps + (0 if hidden is None else 2 * k * d)
    last = 2 * k * k if hidden is None else 3 * k * hidden
    return 2 * k * d + (steps - 1) * 3 * k * k + last


def measure_shape(
    shape: tuple[int, int, int], rows: int, members: int, group_rows: int, seconds: float
) -> list[dict[str, Any]]:
    """Entries of one shape, without the rate."""
    d, k, steps = shape
    threads = torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, d, generator=generator)
    prototypes = torch.randn(members, k, d, generator=generator)
    level = 2.0 / d  # β times the squared distances of random rows is then about 4
    beta, alpha = torch.full((members,), level), 1.0 / steps
    hidden = torch.from_numpy(draw_masks(0, (0,), -(-rows // group_rows), d, MASK_RATE))
    value = torch.zeros(d)
    one = prototypes[0]
    some = max(16, min(rows, DIFFERENCES_BYTES // (12 * steps * k * d)))
    covered = torch.zeros(len(hidden), d).scatter_(1, hidden, 1.0)
    covered = covered.repeat_interleave(group_rows, 0)[:rows]
    few, few_covered = x[:some], covered[:some]

    def kspace_unmasked() -> None:
        unmasked_sums(x, None, prototypes, beta, alpha, steps)

    def kspace_masked() -> None:
        masked_sums(x, None, prototypes, beta, alpha, steps, hidden, group_rows, value)

    def sphere_unmasked() -> None:
        spherical_unmasked_sums(x, None, prototypes, cosine_beta, alpha, steps)

    def sphere_masked() -> None:
        spherical_masked_sums(x, None, prototypes, cosine_beta, alpha, steps, hidden, group_rows)

    cosine_beta = torch.full((members,), 4.0)
    forms: dict[tuple[str, str], tuple[Callable[[], None], int]] = {
        ("unmasked", "kspace"): (kspace_unmasked, rows * members),
        ("masked", "kspace"): (kspace_masked, rows * members),
        ("spherical_unmasked", "kspace"): (sphere_unmasked, rows * members),
        ("spherical_masked", "kspace"): (sphere_masked, rows * members),
    }
    for objective, cover, few_cover in (
        ("unmasked", None, None),
        ("masked", covered, few_covered),
    ):

        def direct(cover: Tensor | None = cover) -> None:
            by_autograd(lambda leaf: products_loss(x, leaf, level, alpha, steps, cover), one)

        def differences(cover: Tensor | None = few_cover) -> None:
            mask = None if cover is None else cover > 0
            by_autograd(
                lambda leaf: direct_loss(
                    few, None, leaf, level, alpha, steps, hidden=mask, scored=mask, value=value
                ),
                one,
            )

        forms[objective, "direct"] = (direct, rows)
        forms[objective, "differences"] = (differences, len(few))

    kspace = {" ".join(key): call for key, (call, _) in forms.items() if key[1] == "kspace"}
    others = {" ".join(key): call for key, (call, _) in forms.items() if key[1] != "kspace"}
    iterations = _iterations(x, one)
    times = best_times(kspace | iterations, seconds, threads)
    times |= best_times(others, seconds / 4, threads)
    usual = {form.__name__ for form in LLOYD}
    fastest = min(times[name] for name in iterations if name.split()[0] in usual) / rows
    tuned = min(times[name] for name in iterations) / rows
    entries = []
    for (objective, form), (_, count) in forms.items():
        seconds_a_row = times[f"{objective} {form}"] / count
        entries.append(_entry(shape, objective, form, seconds_a_row, fastest, threads, members))
    for objective in ("unmasked", "masked"):
        for form, seconds_a_row in (("lloyd", fastest), ("lloyd_tuned", tuned)):
            entries.append(_entry(shape, objective, form, seconds_a_row, fastest, threads, 1))
    return entries


def _iterations(x: Tensor, prototypes: Tensor) -> dict[str, Callable[[], None]]:
    """Every way to write an iteration of k-means, over the whole batch and over blocks."""
    return {
        f"{form.__name__} {rows}": partial(in_blocks, form, x, prototypes, rows)
        for form in (*LLOYD, *TUNED)
        for rows in sorted({len(x), min(len(x), LLOYD_BLOCK_ROWS)})
    }


def _entry(
    shape: tuple[int, int, int],
    objective: str,
    form: str,
    seconds_a_row: float,
    lloyd: float,
    threads: int,
    members: int,
) -> dict[str, Any]:
    return {
        "shape": list(shape),
        "objective": objective,
        "form": form,
        "ns_per_row": seconds_a_row * 1e9,
        "ratio_to_lloyd": seconds_a_row / max(lloyd, 1e-12),
        "threads": threads,
        "members": members if form == "kspace" else 1,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or the list of entries as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="a list of objects")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of torch")
    parser.add_argument("--members", type=int, default=1, help="members trained together")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--group-rows", type=int, default=64, help="rows that share a mask")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each measurement")
    parser.add_argument("--shape", action="append", help="d,k,T; may be repeated")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    shapes = SHAPES
    if options.shape:
        shapes = [tuple(int(part) for part in text.split(",")) for text in options.shape]
    rate = product_rate(1024 if options.seconds > 0 else 64, options.seconds, options.threads)
    entries = []
    for shape in shapes:
        found = measure_shape(
            shape, options.rows, options.members, options.group_rows, options.seconds
        )
        for entry in found:
            if entry["form"] == "kspace" and entry["objective"] in ("unmasked", "masked"):
                d, k, steps = shape
                hidden = None if entry["objective"] == "unmasked" else max(1, round(MASK_RATE * d))
                work = useful_products(d, k, steps, hidden)
                entry["fraction"] = work / (entry["ns_per_row"] * 1e-9) / rate
        entries += found
    if options.json:
        print(json.dumps(entries, indent=1))
        return
    print(f"float32 product rate {2 * rate / 1e9:.0f} GFLOP/s at {options.threads} thread(s)")
    print(
        f"{'(d,k,T)':>16} {'objective':>18} {'form':>12} {'ns a row':>12} {'x Lloyd':>9} fraction"
    )
    for e in entries:
        share = f"{e['fraction']:8.2f}" if "fraction" in e else ""
        print(
            f"{tuple(e['shape'])!s:>16} {e['objective']:>18} {e['form']:>12} "
            f"{e['ns_per_row']:12.1f} {e['ratio_to_lloyd']:9.2f} {share}"
        )


if __name__ == "__main__":
    main()
