"""Writes docs/behaviour.md: each rule, where it is implemented, which tests prove it.

The rules stand here; the tests are found by the rule ids in their names and docstrings.
`--check` fails when the file is not up to date, a named file is gone, or a rule has no test.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "behaviour.md"
TESTS_SHOWN = 4

RULES: dict[str, tuple[str, str]] = {
    "E1": ("names: case kept, compared without case, bounded; queue and topic share them",
           "core/names.py engine/namespace.py"),
    "E2": ("dead-letter and transfer dead-letter sub-queues; paths of subscriptions",
           "core/names.py engine/entities.py"),
    "E3": ("what an entity's description holds, its defaults and limits",
           "core/descriptions.py engine/idle.py"),
    "E4": ("what a message holds; bodies byte for byte; size limits",
           "engine/message.py engine/stored.py"),
    "E5": ("scheduled and deferred messages, peek", "engine/stream.py server/management.py"),
    "E6": ("sessions", "engine/sessions.py engine/stream.py server/door.py"),
    "E7": ("duplicate detection", "engine/duplicates.py engine/entities.py"),
    "E8": ("topics, filters, actions", "engine/topics.py engine/rules.py filters/__init__.py"),
    "E9": ("auto-forwarding", "engine/entities.py"),
    "E10": ("transactions, send via", "engine/transactions.py server/transacting.py"),
    "E11": ("over quota", "engine/entities.py"),
    "S1": ("a send completes when it is durable", "server/broker.py server/replies.py"),
    "S2": ("a refusal has condition, text, tracking id", "core/errors.py server/broker.py"),
    "S3": ("transfers and settlements are pipelined", "amqp/session.py server/bridge.py"),
    "S4": ("the in-flight window is bounded, ready-made", "pairing/window.py"),
    "S5": ("pre-settled transfers", "server/bridge.py"),
    "S6": ("a batch is accepted or refused as a whole", "server/bridge.py"),
    "R1": ("receive-and-delete", "engine/stream.py"),
    "R2": ("peek-lock: exclusive, for LockDuration", "engine/stream.py"),
    "R3": ("back to its place, delivery count up", "engine/stream.py"),
    "R4": ("complete, abandon, defer, dead-letter", "engine/settlement.py"),
    "R5": ("every settlement is answered; a late one touches nothing", "engine/stream.py"),
    "R6": ("renewal", "engine/stream.py server/management.py"),
    "R7": ("locks are volatile, delivery counts are not", "engine/stream.py server/bridge.py"),
    "R8": ("a lock belongs to its link; by token through management",
           "server/bridge.py server/management.py"),
    "R9": ("receive waits, or not at all", "server/bridge.py"),
    "R10": ("at least once", "engine/stream.py journal/journal.py"),
    "D1": ("the dead-letter queue exists by itself and keeps what it has", "engine/entities.py"),
    "D2": ("reason, description, source", "engine/message.py"),
    "D3": ("the broker's own reasons", "engine/entities.py engine/stream.py"),
    "D4": ("MaxDeliveryCount cannot be switched off", "core/descriptions.py"),
    "D5": ("expiry", "engine/upkeep.py engine/index.py"),
    "D6": ("a failing filter with dead-lettering off", "engine/topics.py"),
    "D7": ("ForwardDeadLetteredMessagesTo", "engine/entities.py"),
    "D8": ("the transfer dead-letter queue", "engine/entities.py"),
    "D9": ("the documents' loop ends in the dead-letter queue", "engine/stream.py"),
    "P1": ("pairing is one call with options", "pairing/options.py pairing/pair.py"),
    "P2": ("backlog queues: names, settings, made only where missing", "pairing/backlog.py"),
    "P3": ("while healthy nothing changes", "pairing/sender.py"),
    "P4": ("which failures count", "pairing/failures.py"),
    "P5": ("the timer of an entity", "pairing/policy.py"),
    "P6": ("while failed over: pings, backlog rotation", "pairing/policy.py pairing/sender.py"),
    "P7": ("a ping that succeeds brings all senders back", "pairing/policy.py"),
    "P8": ("rewriting and restoring", "pairing/rewrite.py"),
    "P9": ("a message that grew too large", "pairing/rewrite.py"),
    "P10": ("pings are never delivered, and are metered", "engine/entities.py pairing/names.py"),
    "P11": ("the syphon", "pairing/syphon.py pairing/pump.py"),
    "P12": ("close and fault", "pairing/pair.py"),
    "P13": ("what is not promised", "pairing/__init__.py"),
    "C1": ("every operation is metered; a unit is 64 KB",
           "engine/observer.py engine/metering.py spark/jobs/cost.py"),
    "C2": ("the four charges of a message that went through the backlog", "spark/jobs/cost.py"),
    "C3": ("the idle syphon: predicted and measured", "spark/jobs/cost.py"),
    "L1": ("what the broker does is captured, complete and exactly once",
           "journal/tail.py capture/capturer.py capture/files.py"),
    "L2": ("the jobs: cost, dead letters, failovers, latency, audit", "spark/jobs/__init__.py"),
    "L3": ("the data source: completed only after the micro-batch is committed",
           "spark/source.py spark/stream.py spark/writer.py engine/reserving.py"),
    "L4": ("bulk work: resubmit, syphon, export, load", "spark/bulk/rounds.py"),
    "L5": ("the same on one machine and on a cluster", "spark/session.py spark/java.py"),
}  # fmt: skip


def proofs() -> dict[str, list[str]]:
    """The tests that name each rule, as `file::function`."""
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if not _is_test(node):
                continue
            # Names of functions have their rules in small letters, docstrings in capitals.
            text = f"{node.name} {ast.get_docstring(node) or ''}".upper()
            for rule in set(re.findall(r"(?<![A-Z0-9])([ESRDPCL]\d{1,2})(?![0-9])", text)):
                if rule in found:
                    found[rule].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _is_test(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """A test, or one of the cases (`@cases`) that a test runs side by side."""
    marks = [mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)]
    return node.name.lower().startswith("test") or "cases" in marks


def render(found: dict[str, list[str]]) -> str:
    lines = [
        "# Behaviour, rule by rule",
        "",
        "Made by `python tools/behaviour.py`; a test fails when it is not up to date. A rule",
        f"shows at most {TESTS_SHOWN} of its tests.",
        "",
        "| rule | what | where (`src/twinbus/`) | proved by |",
        "| --- | --- | --- | --- |",
    ]
    for rule, (what, where) in RULES.items():
        tests = "<br>".join(f"`{test}`" for test in found[rule][:TESTS_SHOWN])
        places = " ".join(f"`{place}`" for place in where.split())
        lines.append(f"| {rule} | {what} | {places} | {tests} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    found = proofs()
    text = render(found)
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    faults = [f"{rule} has no test" for rule, tests in found.items() if not tests]
    for rule, (_, where) in RULES.items():
        missing = [p for p in where.split() if not (ROOT / "src" / "twinbus" / p).is_file()]
        faults += [f"{rule} names {place}, which does not exist" for place in missing]
    if not TARGET.exists() or TARGET.read_text() != text:
        faults.append(f"{TARGET.relative_to(ROOT)} is not up to date: run tools/behaviour.py")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
