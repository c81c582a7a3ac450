"""Lets the property tests use the in-memory client and the recorded clients."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "unit" / "amqp"), str(TESTS / "vectors" / "amqp")]
