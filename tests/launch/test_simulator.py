"""Thousands of gangs in a pretended time; what went wrong in one stays as a test of its own."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clam_dist.errors import DataError, RunError
from clam_dist.launch.gang import Patience

sys.path.insert(0, str(Path(__file__).parent))
from simulator import PATIENCE, WIDTHS, Ending, Fault, Schedule, draw, simulate, undisturbed


def check(schedule: Schedule, patience: Patience = PATIENCE) -> Ending:
    """Run a schedule and hold it to all that is promised."""
    ending = simulate(schedule, patience)
    assert ending.problems == (), (schedule, ending)
    if ending.error is None:
        assert ending.value == undisturbed(), (schedule, ending)
    return ending


def scheduled(
    workers: int, *faults: Fault, joins: tuple[float, ...] = (), **other: bool
) -> Schedule:
    options = {"ours": False, "same_address": False} | other
    return Schedule(0, workers, faults=faults, joins=joins, lost_messages=1.0, **options)


def run_seeds(seeds: range) -> None:
    began = time.monotonic()
    endings = [check(draw(seed)) for seed in seeds]
    well = sum(ending.error is None for ending in endings)
    print(
        f"{len(endings)} schedules in {time.monotonic() - began:.1f} s, seeds {seeds.start} to "
        f"{seeds.stop - 1}: {well} with the undisturbed result, {len(endings) - well} with an "
        f"error that had to be; {sum(e.restarts for e in endings)} restarts, "
        f"{sum(e.growths for e in endings)} times gone on with more ranks, the longest "
        f"{max(e.seconds for e in endings):.0f} s of pretended time"
    )
    assert well > len(endings) / 2


def test_schedules() -> None:
    run_seeds(range(250))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_many_more_schedules() -> None:
    run_seeds(range(250, 5250))


def test_the_same_seed_is_the_same_run() -> None:
    schedule = next(draw(seed) for seed in range(100) if len(draw(seed).faults) > 3)
    first, second = simulate(schedule), simulate(schedule)
    assert (first.seconds, first.worlds, first.restarts) == (
        second.seconds,
        second.worlds,
        second.restarts,
    )


def test_undisturbed() -> None:
    ending = check(scheduled(3))
    assert (ending.worlds, ending.restarts) == ((3,), 0)


def test_what_a_rank_raises_ends_the_run() -> None:
    ending = check(scheduled(3, Fault("raise", 1, None, 5, 0.0)))
    assert isinstance(ending.error, DataError)
    assert ending.worlds == (3,)


def test_a_worker_that_joins_late_is_used_from_the_next_attempt() -> None:
    patience = replace(PATIENCE, grow=1000.0)
    ending = check(scheduled(2, Fault("kill", 1, None, 7, 0.0), joins=(1.0, 1.5)), patience)
    assert (ending.worlds, ending.growths) == ((2, 3), 0)


def test_a_worker_that_joins_late_is_used_from_the_next_checkpoint_of_a_long_attempt() -> None:
    ending = check(scheduled(1, joins=(0.5,)), replace(PATIENCE, grow=1.0))
    assert ending.worlds == (1, 2)
    assert (ending.growths, ending.restarts) == (1, 0)


@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize("part", range(len(WIDTHS)))
def test_a_death_between_the_exchanges_of_a_step(part: int, kind: str) -> None:
    """Some ranks have the totals of one exchange and wait in the next, of another shape."""
    faults = (Fault(kind, 1, None, 4, 0.0, part), Fault(kind, 2, None, 9, 0.0, part))
    ending = check(scheduled(3, *faults))
    assert (ending.error, ending.worlds, ending.restarts) == (None, (3, 2, 1), 2)


# -- what the simulator found ---------------------------------------------------------------------


def test_one_silent_worker_does_not_cost_the_others() -> None:
    """All ranks that had not ended were given up, killed or left aside, beside the silent one."""
    patience = replace(PATIENCE, silent=5.0)
    ending = check(scheduled(3, Fault("stop", 1, None, 4, 0.0)), patience)
    assert (ending.worlds, ending.error) == ((3, 2), None)
    assert "worker w1 did not answer any more (no sign of life for" in ending.said[0]
    assert "w0" not in ending.said[0]


def test_a_worker_left_aside_is_used_again_once_its_rank_has_ended() -> None:
    """Rank 0 worked alone for a while as the other was lost: it was left aside for good."""
    ending = check(
        scheduled(2, Fault("slow", 0, None, 6, 7.0), Fault("kill", 1, 3.5, None, 0.0)),
    )
    assert ending.error is None
    assert ending.worlds == (2, 1)


def test_a_worker_that_was_stopped_and_goes_on_is_used_again() -> None:
    ending = check(scheduled(1, Fault("stop", 0, None, 4, 25.0)))
    assert (ending.error, ending.worlds) == (None, (1, 1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_comes_back_at_its_address_at_once(rank: int) -> None:
    """The scheduler gave the lost rank to the new process, which took the seat; it was left aside
    as hanging, though it was well."""
    ending = check(scheduled(2, Fault("kill", rank, None, 4, 0.001), same_address=True))
    assert (ending.error, ending.worlds, ending.restarts) == (None, (2, 2), 1)
    assert ending.seconds < 20
    assert f"w{rank}" in ending.said[0]


def test_fewer_workers_are_enough_where_waiting_is_short() -> None:
    """With cluster.wait below the time to settle, workers that were there were not taken."""
    patience = replace(PATIENCE, wait=1.0, settle=5.0)
    ending = check(scheduled(3, Fault("kill", 2, None, 4, 0.0)), patience)
    assert (ending.error, ending.worlds) == (None, (3, 2))


def test_nobody_comes_back() -> None:
    ending = check(scheduled(2, Fault("kill", 0, 2.0, None, 0.0), Fault("kill", 1, 2.1, None, 0.0)))
    assert isinstance(ending.error, RunError)
    assert "no worker is there, 40 s (cluster.wait) after worker w0 was lost" in str(ending.error)
    assert ending.seconds < 2.1 + 40 + 5
