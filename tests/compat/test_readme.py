"""The README's example does what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker import PROJECT, Broker

README = (PROJECT / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_sends_and_receives(tmp_path: Path) -> None:
    config = tmp_path / "twinbus.toml"
    config.write_text(block("toml"))
    options = ("--admin-port", "off", "--config", str(config))
    form = os.environ.get("TWINBUS_FORM")
    with Broker(tmp_path / "broker", form=form, options=options) as broker:
        ran = subprocess.run(
            [sys.executable, "-c", block("python")],
            env=os.environ | {"CONNECTION": broker.connection_string},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["1", "order", "one", "coffee"]
