"""The engine against a naive second broker, in virtual time, with crashes (SPEC sections 1–4).

Hypothesis chooses what is sent, received, settled, changed and lost, and when; `World` compares
the two brokers after every step. See its checks for what must hold.
"""

from __future__ import annotations

import pytest
from engine_bulk import BulkOperations
from engine_machine import Machine
from engine_messages import MessageOperations
from engine_store import JournalStore
from engine_upheavals import Upheavals
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test


class EngineMachine(MessageOperations, BulkOperations, Upheavals):
    """Every operation, on a log in memory."""


class JournalMachine(EngineMachine):
    """The same on the real journal."""

    make_store = JournalStore


class ObservingMachine(EngineMachine):
    """The same, and what happens is written down as well."""

    observing = True


def run(machine: type[Machine], steps: int, *, explores: bool = False) -> None:
    """The normal run takes the same steps every time; the long one looks for new ones."""
    step_count = 70
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=steps // step_count,
            stateful_step_count=step_count,
            deadline=None,
            derandomize=not explores,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)
def test_engine_does_what_the_naive_broker_does() -> None:
    run(EngineMachine, 7_000)


def test_engine_does_the_same_on_the_real_journal() -> None:
    run(JournalMachine, 2_000)


def test_l1_engine_observes_what_the_naive_broker_does() -> None:
    run(ObservingMachine, 2_000)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_engine_does_what_the_naive_broker_does_for_long() -> None:
    run(EngineMachine, 100_000, explores=True)
