"""What paired namespaces do not promise is said where users read it."""

from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pairing.md"


@pytest.mark.parametrize(
    "said",
    [
        "Receivers work on the primary only",
        "Order is not kept across a failover",
        "Session state lives in the primary",
        "New messages may overtake those in the backlog",
    ],
)
def test_p13_the_page_says_it(said: str) -> None:
    promises = PAGE.read_text().split("## What is not promised")[1]
    assert said in promises
