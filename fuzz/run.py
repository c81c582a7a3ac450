"""Fuzz one target, or all in turn: `python -m fuzz.run TARGET|all [--seconds N] [--jobs N]`.

Coverage-guided by atheris; `--seconds` is processor time for each target, so that a busy machine
does not make a run shorter. Kept seeds are in `fuzz/corpus/TARGET`; what a run finds goes to
`artifacts/fuzz/TARGET`, its log to `artifacts/fuzz/TARGET.log`, and an input that breaks
something to `artifacts/fuzz/TARGET-…`. `python -m fuzz.run TARGET FILE` runs one such input.
`--keep` adds to the kept seeds the fewest inputs that reach all that was reached.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
CORPUS = PROJECT / "fuzz" / "corpus"
FOUND = PROJECT / "artifacts" / "fuzz"
NAMES = (
    "frames", "hello", "links", "codec", "message", "batch", "sql", "xml", "management", "journal",
)  # fmt: skip
INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 10
MEMORY_MB_MAX = 1024
# A target is fuzzed in turns: how much processor time it got is known when a process has ended.
TURN_SECONDS = 300


@dataclass
class Totals:
    """What the turns of one target came to."""

    name: str
    processor_s: float = 0.0
    executions: int = 0
    edges: int = 0
    peak_mb: int = 0
    is_broken: bool = False

    def add(self, log: str, processor_s: float, returncode: int) -> None:
        self.processor_s += processor_s
        self.executions += _greatest(r"stat::number_of_executed_units:\s+(\d+)", log)
        self.edges = max(self.edges, _greatest(r"\bcov: (\d+)", log))
        self.peak_mb = max(self.peak_mb, _greatest(r"stat::peak_rss_mb:\s+(\d+)", log))
        self.is_broken = returncode != 0

    def __str__(self) -> str:
        verdict = "BROKEN, see artifacts/fuzz" if self.is_broken else "nothing found"
        return (
            f"{self.name:<11} {self.processor_s / 60:5.1f} CPU min  {self.executions:>11,} runs  "
            f"{self.edges:>5} edges  peak {self.peak_mb:>4} MB  {verdict}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("target", choices=(*NAMES, "all"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    # The interpreted form: only that can be instrumented.
    sys.path.insert(0, str(PROJECT / "src"))
    if given.file is not None:
        from fuzz.targets import TARGETS

        TARGETS[given.target](given.file.read_bytes())
        return 0
    names = NAMES if given.target == "all" else (given.target,)
    with ThreadPoolExecutor(given.jobs) as pool:
        ended = list(pool.map(lambda name: _fuzz(name, given.seconds, given.keep), names))
    return 1 if any(totals.is_broken for totals in ended) else 0


def _fuzz(name: str, seconds: float, keeps: bool) -> Totals:
    """Fuzz in turns until the target has had its time or something broke."""
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    corpora = [str(found), str(CORPUS / name)]
    totals = Totals(name)
    log = FOUND / f"{name}.log"
    log.unlink(missing_ok=True)
    while totals.processor_s < seconds and not totals.is_broken:
        turn_s = max(1, min(TURN_SECONDS, int(seconds - totals.processor_s)))
        options = {
            "max_total_time": turn_s,
            "max_len": INPUT_BYTES_MAX,
            "timeout": INPUT_SECONDS_MAX,
            "rss_limit_mb": MEMORY_MB_MAX,
            "artifact_prefix": f"{found}-",
            "print_final_stats": 1,
        }
        totals.add(*_turn(name, options, corpora, log))
    if keeps and not totals.is_broken:
        _turn(name, {"merge": 1}, corpora[::-1], log)
    print(totals, flush=True)
    return totals


def _turn(
    name: str, options: dict[str, object], corpora: list[str], log: Path
) -> tuple[str, float, int]:
    """One process of libFuzzer: what it wrote, its processor time and how it ended."""
    arguments = [f"-{key}={value}" for key, value in options.items()]
    command = [sys.executable, "-m", "fuzz.instrumented", name, *arguments, *corpora]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    with log.open("ab") as to:
        begun = to.tell()
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=to, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    written = log.read_bytes()[begun:].decode(errors="replace")
    return written, usage.ru_utime + usage.ru_stime, process.returncode


def _greatest(pattern: str, log: str) -> int:
    return max(map(int, re.findall(pattern, log)), default=0)


if __name__ == "__main__":
    sys.exit(main())
