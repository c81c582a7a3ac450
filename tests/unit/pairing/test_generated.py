"""The synchronous modules are what the generator makes of the asynchronous ones."""

import subprocess
import sys
from pathlib import Path

import twinbus.pairing
import twinbus.pairing.sync

PROJECT = Path(__file__).resolve().parents[3]


def test_nothing_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, "tools/async_to_sync.py", "--check"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_sides_have_the_same_shape() -> None:
    assert twinbus.pairing.__all__ == twinbus.pairing.sync.__all__
    for name in ("PairedServiceBusClient", "PairedSender", "Syphon", "SendWindow"):
        public = [
            {each.replace("__a", "__") for each in dir(getattr(side, name)) if each[0] != "_"}
            for side in (twinbus.pairing, twinbus.pairing.sync)
        ]
        assert public[0] == public[1]
