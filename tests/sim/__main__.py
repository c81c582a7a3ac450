"""Run seeds: `python -m tests.sim [--seeds N] [--from SEED] [--jobs N] [--seconds S]`.

`SEED=n python -m tests.sim`, or `--seed n`, makes one run and prints its trace; the hash at the
end is the same whenever the same code runs the same seed. `--plant NAME` puts in a bug, tries
the seeds known to find it first, and stops at the first that does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from multiprocessing import Pool

from tests.sim.planted import PLANTED, planted
from tests.sim.world import Result, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=os.environ.get("SEED"))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--plant", choices=PLANTED)
    given = parser.parse_args()
    seeds: Iterable[int] = range(given.first, given.first + given.seeds)
    with planted(given.plant) if given.plant else nullcontext():
        if given.seed is not None:
            result = run_seed(int(given.seed), keeps_trace=True)
            print(*result.trace, sep="\n")
            return _report([result])
        if given.plant:
            seeds = chain(PLANTED[given.plant].seeds, seeds)
        return _report(_run(seeds, given.jobs, given.seconds, stops=bool(given.plant)))


def _run(seeds: Iterable[int], jobs: int, seconds: float, *, stops: bool) -> list[Result]:
    begun = time.monotonic()
    results: list[Result] = []
    for result in _results(seeds, jobs):
        results.append(result)
        for violation in result.violations:
            print(f"seed {result.seed}: {violation}", flush=True)
        if time.monotonic() - begun > seconds or (stops and result.violations):
            break
    return results


def _results(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=8)


def _report(results: list[Result]) -> int:
    totals = sum((result.counts for result in results[1:]), results[0].counts.copy())
    failed = [result.seed for result in results if result.violations]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(totals.items()))
    print(f"{len(results)} runs, {len(failed)} with violations: {counted}")
    for seed in failed:
        print(f"again: SEED={seed} python -m tests.sim")
    if len(results) == 1:
        print(f"seed {results[0].seed}, trace {results[0].trace_hash}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
