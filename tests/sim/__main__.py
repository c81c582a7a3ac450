"""Run seeds: `python -m tests.sim [--seeds N] [--from SEED] [--jobs N] [--seconds S]`.

`SEED=n python -m tests.sim`, or `--seed n`, makes one run and prints its trace; the hash at the
end is the same whenever the same code runs the same seed. `--plant NAME` puts in a bug, tries
the seeds known to find it first, and stops at the first that does, by the rule it breaks. A
long run says now and then how far it is; Ctrl-C ends it with the report of what was run.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from multiprocessing import Pool

from tests.sim.planted import PLANTED, planted
from tests.sim.world import Result, run_seed

_PROGRESS_SEEDS = 1000


class Report:
    """What all runs together came to; the runs themselves are not kept."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._runs = 0
        self._counts: Counter[str] = Counter()
        self.failed: list[int] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun_s

    def add(self, result: Result) -> None:
        self._runs += 1
        self._counts += result.counts
        for violation in result.violations:
            print(f"seed {result.seed}: {violation}", flush=True)
        if result.violations:
            self.failed.append(result.seed)
        if self._runs % _PROGRESS_SEEDS == 0:
            rate = self._runs / self.seconds
            print(f"{self._runs} runs, {len(self.failed)} failed, {rate:.1f} a second", flush=True)

    def close(self) -> int:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(self._counts.items()))
        print(f"{self._runs} runs, {len(self.failed)} with violations: {counted}")
        for seed in self.failed:
            print(f"again: SEED={seed} python -m tests.sim")
        return 1 if self.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=os.environ.get("SEED"))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--plant", choices=PLANTED)
    given = parser.parse_args()
    # What is loaded now stays: no run needs to look through it for garbage.
    gc.freeze()
    report = Report()
    with planted(given.plant) if given.plant else nullcontext():
        if given.seed is not None:
            result = run_seed(int(given.seed), keeps_trace=True)
            print(*result.trace, sep="\n")
            report.add(result)
            code = report.close()
            print(f"seed {result.seed}, trace {result.trace_hash}")
            return code
        seeds: Iterable[int] = range(given.first, given.first + given.seeds)
        if given.plant:
            seeds = chain(PLANTED[given.plant].seeds, seeds)
        try:
            for result in _results(seeds, given.jobs):
                report.add(result)
                if report.seconds > given.seconds or _is_found(given.plant, result):
                    break
        except KeyboardInterrupt:
            print("stopped", flush=True)
    return report.close()


def _is_found(bug: str | None, result: Result) -> bool:
    """Whether a run found the planted bug, by the rule that it breaks."""
    said = [violation.split(maxsplit=2)[1] for violation in result.violations]
    return bug is not None and f"{PLANTED[bug].rule}:" in said


def _results(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
