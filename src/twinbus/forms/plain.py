"""Strangers' texts where a terminal reads them: they are seen, and do nothing.

What senders, receivers and other machines wrote may hold characters that move the cursor, colour
the screen, turn the line around or end it, and so show something else than what is there.
"""

# They join letters and the parts of an emoji, and do no more.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """One line: white space of every kind is a space, other characters that steer are U+FFFD."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return " " if character.isspace() else "\ufffd"
