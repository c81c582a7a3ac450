"""Fuzz one target, or all in turn: `python -m fuzz.run TARGET|all [--seconds N]`.

Coverage-guided by atheris, which is installed when it is missing. Kept seeds are in
`fuzz/corpus/TARGET`; what a run finds goes to `artifacts/fuzz/TARGET`, and an input that breaks
something to `artifacts/fuzz/TARGET-…`. `python -m fuzz.run TARGET FILE` runs one such input.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
NAMES = ("frames", "hello", "codec", "message", "batch", "sql", "xml", "management", "journal")
INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 10
MEMORY_MB_MAX = 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("target", choices=(*NAMES, "all"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    if given.target == "all":
        command = [sys.executable, "-m", "fuzz.run"]
        options = ["--seconds", str(given.seconds)]
        ended = [subprocess.run([*command, name, *options]).returncode for name in NAMES]
        return max(ended)
    # The interpreted form: only that can be instrumented.
    sys.path.insert(0, str(PROJECT / "src"))
    if given.file is not None:
        from fuzz.targets import TARGETS

        TARGETS[given.target](given.file.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is None:
        install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
        subprocess.run([*install, "atheris"], check=True)
    _fuzz(given.target, given.seconds)
    return 0


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz; libFuzzer ends the process itself."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["twinbus"]):
        from fuzz.targets import TARGETS

    found = PROJECT / "artifacts" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": INPUT_SECONDS_MAX,
        "rss_limit_mb": MEMORY_MB_MAX,
        "artifact_prefix": f"{found}-",
        "print_final_stats": 1,
        "verbosity": 0,
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    corpus = PROJECT / "fuzz" / "corpus" / name
    atheris.Setup([name, *arguments, str(found), str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
