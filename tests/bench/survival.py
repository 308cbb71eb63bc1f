"""Workers killed, stopped and taken away while runs go on: every run ends, with the same labels.

    python tests/bench/survival.py [--rows N] [--trials N] [--seed S] [--only NAME] [--json]

``kills``: a run on two workers of its own; `kill -9` of one of them in each stage, and at drawn
moments of training, ``--trials`` times: exit 0, labels equal to the undisturbed run's. Printed: the
seconds from the death to the next report of training (an epoch's end, so an upper bound of the
next step), median and worst.
``pairs``: two runs at once on one cluster of two workers, half as many times as there are trials:
both end with the right labels.
``raises``: a shard is cut short between two stages, so that a rank raises.
``stopped``: SIGSTOP of a worker that is ours, and of one that is not.
``gone``: workers killed with their nannies, and none comes back within ``cluster.wait``: exit 4
within 30 s of that limit; workers started again, the rerun resumes and gives the same labels.
``scheduler``: the scheduler is killed: exit 4.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

from clam_dist.demo import write_demo

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))
from by_hand import end_group, hand_cluster

STAGES = ("profile", "shards", "train", "assign")
"""That workers take part in."""
LIMIT = 600.0
"""Seconds after which a run counts as hung."""
DRIVER = """
import json, sys, time
from clam_dist.cli_errors import exit_code_of

def tell(event):
    print(json.dumps({"at": time.time(), **event}, default=str), flush=True)

if __name__ == "__main__":
    try:
        from clam_dist.config import load_config
        from clam_dist.stages import run
        run(load_config(sys.argv[1]), on_event=tell)
    except BaseException as caught:
        sys.exit(exit_code_of(caught))
"""


class Run:
    """A run in a process of its own, and what it has told so far."""

    def __init__(self, folder: Path, data: Path, cluster: dict[str, Any], train: dict[str, Any]):
        self.folder, self.out = folder, folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "source": {"uri": str(data), "label": "label"},
            "model": {"n_clusters": 9, "beta": 1.0, "objective": "unmasked"},
            "train": {"restarts": 4, **train},
            "cluster": cluster,
            "output": {"uri": str(self.out)},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "driver.py").write_text(DRIVER)
        self.events: list[dict[str, Any]] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.began = time.time()
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "driver.py"), str(folder / "config.yaml")],
            stdout=subprocess.PIPE,
            stderr=open(folder / "stderr", "wb"),  # noqa: SIM115
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
            },
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"{"):
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """The next event that is wanted; None at the run's end."""
        while True:
            left = self.began + LIMIT - time.time()
            event = self._queue.get(timeout=max(left, 0.1))
            if event is None:
                return None
            self.events.append(event)
            if wanted(event):
                return event

    def end(self) -> int:
        """Wait for the end; the exit code."""
        self.until(lambda _: False)
        return self.process.wait(LIMIT)

    @property
    def said(self) -> str:
        """What went to stderr."""
        return (self.folder / "stderr").read_text()

    @property
    def warnings(self) -> list[str]:
        """What the launcher said of failures."""
        return [e["message"] for e in self.events if e.get("level") in ("WARNING", "ERROR")]

    def workers(self) -> list[psutil.Process]:
        """The run's own worker processes."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in family if "spawn_main" in " ".join(child.cmdline())]

    def labels(self) -> Any:
        """The labels, of which those of every run must be the same."""
        (file,) = (self.out / "labels").glob("*.parquet")
        return pq.read_table(file)


def epoch_of(event: dict[str, Any]) -> bool:
    return event["event"] == "epoch"


class Bench:
    """The demo rows, the undisturbed run, and the trials against it."""

    def __init__(self, folder: Path, rows: int, trials: int, seed: int) -> None:
        self.folder, self.trials, self.seed = folder, trials, seed
        self.data = folder / "vowels.parquet"
        write_demo("vowels", self.data, rows=rows)
        self.train = {"epochs": 10, "batch_rows": min(16384, rows // 2)}
        self.number = 0
        self.own = {"workers": 2, "memory_limit": "2GiB"}
        run = self.run({"kind": "serial"})
        assert run.end() == 0, run.said
        self.labels = run.labels()
        run = self.run(self.own)
        assert run.end() == 0, run.said
        assert run.labels().equals(self.labels)
        epochs = [event["at"] for event in run.events if epoch_of(event)]
        self.seconds = epochs[-1] - epochs[0]
        self.epochs = len(epochs)

    def run(self, cluster: dict[str, Any], **train: Any) -> Run:
        """Start a run in a folder of its own."""
        self.number += 1
        return Run(self.folder / f"run-{self.number}", self.data, cluster, self.train | train)

    def check(self, run: Run) -> None:
        """The run must end well, with the labels of the undisturbed one."""
        code = run.end()
        assert code == 0, (code, run.said, run.warnings)
        assert run.labels().equals(self.labels), run.folder

    def kills(self) -> dict[str, Any]:
        """In each stage, and at drawn moments of training."""
        trials, waits = [], []
        for trial in range(self.trials):
            rng = random.Random(f"{self.seed} {trial}")
            stage = STAGES[trial % len(STAGES)] if trial < len(STAGES) else "train"
            run = self.run(self.own)
            if stage == "profile":
                run.until(lambda e: e["event"] == "cluster")
            else:
                run.until(lambda e, s=stage: (e.get("stage"), e.get("status")) == (s, "started"))
            if stage == "train":
                after = rng.randrange(max(1, self.epochs - 2))
                for _ in range(after + 1):
                    run.until(epoch_of)
                time.sleep(rng.uniform(0, self.seconds / self.epochs))
            else:
                time.sleep(rng.uniform(0, 0.3))
            workers = run.workers()
            died = time.time()
            killed = bool(workers)
            if workers:
                rng.choice(workers).kill()
            if stage == "train":
                following = run.until(lambda e, at=died: epoch_of(e) and e["at"] > at + 0.2)
                if following is not None and any("was lost" in line for line in run.warnings):
                    waits.append(following["at"] - died)
            self.check(run)
            restarts = sum("starting all ranks again" in line for line in run.warnings)
            trials.append({"seed": f"{self.seed} {trial}", "stage": stage, "killed": killed})
            stages = {
                e["stage"]: round(e["seconds"], 2)
                for e in run.events
                if e["event"] == "stage" and e["status"] == "finished"
            }
            trials[-1] |= {"restarts": restarts, "seconds": time.time() - run.began}
            trials[-1] |= {"stages": stages}
        return {
            "trials": trials,
            "same_labels": len(trials),
            "seconds_to_next_epoch": {"median": median(waits), "worst": max(waits), "n": len(waits)}
            if waits
            else None,
            "epoch_seconds": self.seconds / self.epochs,
        }

    def pairs(self) -> dict[str, Any]:
        """Two runs at once on one cluster."""
        count = max(1, self.trials // 2)
        seconds = []
        with hand_cluster(self.folder / "pairs", 2) as cluster:
            for _ in range(count):
                runs = [self.run({"address": cluster.address, "workers": 2}) for _ in range(2)]
                for run in runs:
                    self.check(run)
                seconds.append(max(time.time() - run.began for run in runs))
        return {"pairs": count, "same_labels": 2 * count, "longest_seconds": max(seconds)}

    def raises(self) -> dict[str, Any]:
        """A rank that raises: told at once, with worker and cause, and no restart."""
        run = self.run(self.own, epochs=200)
        run.until(epoch_of)
        for path in (run.out / "_work" / "shards").glob("*.x.npy"):
            if "sample" not in path.name:
                os.truncate(path, 4096)
        cut = time.time()
        code = run.end()
        return {
            "exit_code": code,
            "seconds": time.time() - cut,
            "told": run.warnings[-1:],
            "message": run.said.strip().splitlines()[-1:],
        }

    def stopped(self) -> dict[str, Any]:
        """A worker that is stopped: ours is killed and replaced, another's is left aside."""
        found = {}
        run = self.run(self.own)
        run.until(epoch_of)
        random.Random(self.seed).choice(run.workers()).send_signal(signal.SIGSTOP)
        found["ours"] = self._after_stop(run)
        with hand_cluster(self.folder / "stopped", 2) as cluster:
            run = self.run({"address": cluster.address, "workers": 2})
            run.until(epoch_of)
            cluster.workers[1].send_signal(signal.SIGSTOP)
            found["not_ours"] = self._after_stop(run)
        return found

    def _after_stop(self, run: Run) -> dict[str, Any]:
        at = time.time()
        following = run.until(lambda e: epoch_of(e) and e["at"] > at + 3)
        self.check(run)
        assert following is not None
        return {"seconds_to_next_epoch": following["at"] - at, "told": run.warnings}

    def gone(self, wait: float = 10.0) -> dict[str, Any]:
        """All workers and their nannies killed; then started again."""
        with hand_cluster(self.folder / "gone", 2, worker_options=["--nanny"]) as cluster:
            settings = {"address": cluster.address, "workers": 2, "wait": wait}
            run = self.run(settings)
            # Not the first second, before which no checkpoint is written
            run.until(lambda e: e["event"] == "checkpoint" or e.get("epoch") == self.epochs - 1)
            at = time.time()
            for process in cluster.workers:
                end_group(process)
            code = run.end()
            seconds = time.time() - at
            assert code == 4, (code, run.said)
            message = run.said.strip().splitlines()[-1]
            for _ in range(2):
                cluster.add_worker("--nanny")
            again = Run(run.folder, self.data, {**settings, "wait": 60}, self.train)
            self.check(again)
        notes = [e["message"] for e in again.events if e["event"] == "note"]
        stages = [e for e in again.events if e["event"] == "stage" and e["status"] == "reused"]
        return {
            "exit_code": code,
            "wait": wait,
            "seconds": seconds,
            "message": message,
            "reused": [event["stage"] for event in stages],
            "from_checkpoint": any("goes on from its checkpoint" in note for note in notes),
        }

    def scheduler(self) -> dict[str, Any]:
        """The scheduler is killed in training."""
        with hand_cluster(self.folder / "scheduler", 2) as cluster:
            run = self.run({"address": cluster.address, "workers": 2, "wait": 20})
            run.until(epoch_of)
            at = time.time()
            cluster.processes[0].kill()
            code = run.end()
        return {
            "exit_code": code,
            "seconds": time.time() - at,
            "message": run.said.strip().splitlines()[-1],
        }


NAMES = ("kills", "pairs", "raises", "stopped", "gone", "scheduler")


def main() -> None:
    """Read the options, try, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--folder", type=Path, help="where files go; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        bench = Bench(Path(name), options.rows, options.trials, options.seed)
        record: dict[str, Any] = {"rows": options.rows, "seed": options.seed}
        for what in options.only or NAMES:
            record[what] = getattr(bench, what)()
            if not options.json:
                print(what, json.dumps(record[what], indent=1), flush=True)
    if options.json:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
