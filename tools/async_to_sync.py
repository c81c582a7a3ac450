"""Makes the synchronous twins of the asynchronous pairing modules.

The asynchronous source enters; `src/twinbus/pairing/sync/` leaves: the same code with `async`
and `await` taken out and a few names exchanged. Comments and layout stay, because it works
on tokens. What differs by more than names is in `concurrency.py`, written twice by hand.

    python tools/async_to_sync.py            write the files
    python tools/async_to_sync.py --check    fail if a file is not what would be written
"""

import argparse
import io
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "twinbus" / "pairing"
MODULES = (
    "backlog",
    "client",
    "order",
    "pair",
    "pool",
    "pump",
    "sender",
    "syphon",
    "window",
)
HEADER = "# Generated from ../{name}.py by tools/async_to_sync.py; change that file instead.\n"
#: Said aloud, because the formatter cannot see modules that are being written just now.
FIRST_PARTY = 'lint.isort.known-first-party = ["twinbus"]'

NAMES = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
#: Import paths, longest first where one begins like another.
IMPORTS = {
    "azure.servicebus.aio.management": "azure.servicebus.management",
    "azure.servicebus.aio": "azure.servicebus",
} | {
    f"twinbus.pairing.{name}": f"twinbus.pairing.sync.{name}" for name in (*MODULES, "concurrency")
}


def to_sync(source: str) -> str:
    """Rewrite one module. Dropping a token also drops the blank behind it."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    lines = source.splitlines(keepends=True)
    for token in reversed(tokens):
        if token.type != tokenize.NAME:
            continue
        row, column = token.start[0] - 1, token.start[1]
        line = lines[row]
        if token.string in ("async", "await"):
            end = token.end[1] + (1 if line[token.end[1] : token.end[1] + 1] == " " else 0)
            lines[row] = line[:column] + line[end:]
        elif token.string in NAMES:
            lines[row] = line[:column] + NAMES[token.string] + line[token.end[1] :]
    return "".join(_import(line) for line in lines)


def _import(line: str) -> str:
    """Exchange the module in a `from … import` line."""
    words = line.split(" ")
    if words[0] == "from" and words[1] in IMPORTS:
        words[1] = IMPORTS[words[1]]
    return " ".join(words)


def formatted(source: str, name: str) -> str:
    """Lay the result out as the formatter would: shorter lines may now be joined."""
    options = ["-q", "--config", FIRST_PARTY, "--stdin-filename", name, "-"]
    for command in (["check", "--select", "I", "--fix"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return source


def generate(name: str) -> str:
    source = (PACKAGE / f"{name}.py").read_text()
    target = str(PACKAGE / "sync" / f"{name}.py")
    return HEADER.format(name=name) + formatted(to_sync(source), target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, tell what is stale")
    check = parser.parse_args().check
    stale = []
    for name in MODULES:
        target = PACKAGE / "sync" / f"{name}.py"
        text = generate(name)
        if target.exists() and target.read_text() == text:
            continue
        stale.append(name)
        if not check:
            target.write_text(text)
    for name in stale:
        print(f"{'stale' if check else 'written'}: sync/{name}.py")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
