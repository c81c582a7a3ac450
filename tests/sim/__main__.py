"""Run seeds: `python -m tests.sim [--seeds N] [--from SEED] [--seconds S]`, or one: `SEED=n`.

With SEED set, or `--seed n`, one run is made and its trace printed; the hash at the end is the
same whenever the same code runs the same seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.sim.world import Result, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=os.environ.get("SEED"))
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.seed is not None:
        result = run_seed(int(given.seed), keeps_trace=True)
        print(*result.trace, sep="\n")
        return _report([result])
    begun = time.monotonic()
    results: list[Result] = []
    for seed in range(given.first, given.first + given.seeds):
        results.append(run_seed(seed))
        for violation in results[-1].violations:
            print(f"seed {seed}: {violation}", flush=True)
        if time.monotonic() - begun > given.seconds:
            break
    return _report(results)


def _report(results: list[Result]) -> int:
    totals = sum((result.counts for result in results[1:]), results[0].counts.copy())
    failed = [result.seed for result in results if result.violations]
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(totals.items()))
    print(f"{len(results)} runs, {len(failed)} with violations: {counted}")
    if len(results) == 1:
        print(f"seed {results[0].seed}, trace {results[0].trace_hash}")
    for seed in failed:
        print(f"again: SEED={seed} python -m tests.sim")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
