"""One target under libFuzzer: `python -m fuzz.instrumented TARGET [libFuzzer's arguments]`.

Started by `fuzz.run`. The product is instrumented as it is imported; libFuzzer ends the process.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["twinbus"]):
    from fuzz.targets import TARGETS

if __name__ == "__main__":
    atheris.Setup(sys.argv[1:], TARGETS[sys.argv[1]])
    atheris.Fuzz()
