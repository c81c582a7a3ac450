"""Strangers' texts on a terminal."""

import pytest

from twinbus.forms.plain import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Köln, 東京, \U0001f468\u200d\U0001f469", "Köln, 東京, \U0001f468\u200d\U0001f469"),
        ("a\x1b[2J\x07\x9b1m\x7f", "a\ufffd[2J\ufffd\ufffd1m\ufffd"),
        ("a\u202eb\ufeff", "a\ufffdb\ufffd"),
        ("a\r\nb\tc\u00a0d\u2028e", "a  b c d e"),
    ],
    ids=["words", "controls", "directions", "white space"],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
