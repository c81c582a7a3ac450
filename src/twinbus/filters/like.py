"""LIKE: `%` stands for any run of characters, `_` for any one.

A pattern goes in, a function from text to bool comes out. The work is bounded by the
length of the text times a small constant whatever the pattern: there is no backtracking.
"""

from collections.abc import Callable
from typing import TypeAlias

Matcher: TypeAlias = Callable[[str], bool]

# As long as an expression may be. It also bounds the masks below.
PATTERN_CHARS_MAX = 1_024

# What stands between two `%`: characters, or None for "any one".
_Segment: TypeAlias = list[str | None]
# Gives where a segment first fits between start and end, or -1.
_Finder: TypeAlias = Callable[[str, int, int], int]


def compile_like(pattern: str, escape: str | None = None) -> Matcher:
    """Compile a pattern; ValueError says what is wrong with it."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise ValueError(f"A LIKE pattern may have at most {PATTERN_CHARS_MAX} characters.")
    if escape is not None and len(escape) != 1:
        raise ValueError("ESCAPE needs a text of exactly one character.")
    segments = _split(pattern, escape)
    if len(segments) == 1:
        return _whole(segments[0])
    return _parts(segments[0], [s for s in segments[1:-1] if s], segments[-1])


def _split(pattern: str, escape: str | None) -> list[_Segment]:
    segments: list[_Segment] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError(f"The LIKE pattern ends with its escape character '{escape}'.")
            segments[-1].append(literal)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return segments


def _literal(segment: _Segment) -> str | None:
    """Give the segment as a plain text, if it is one."""
    characters = [character for character in segment if character is not None]
    return "".join(characters) if len(characters) == len(segment) else None


def _whole(segment: _Segment) -> Matcher:
    literal = _literal(segment)
    if literal is not None:
        return literal.__eq__
    length = len(segment)
    fits = _fitter(segment)
    return lambda text: len(text) == length and fits(text, 0)


def _parts(head: _Segment, middle: list[_Segment], tail: _Segment) -> Matcher:
    fits_head, fits_tail = _fitter(head), _fitter(tail)
    head_length, tail_length = len(head), len(tail)
    length_min = head_length + tail_length
    finders = [(_finder(segment), len(segment)) for segment in middle]

    def matches(text: str) -> bool:
        end = len(text) - tail_length
        if len(text) < length_min or not fits_head(text, 0) or not fits_tail(text, end):
            return False
        start = head_length
        # The first place where a segment fits leaves the most room for those after it,
        # so no other place needs to be tried.
        for find, length in finders:
            start = find(text, start, end)
            if start < 0:
                return False
            start += length
        return True

    return matches


def _fitter(segment: _Segment) -> Callable[[str, int], bool]:
    literal = _literal(segment)
    if literal is not None:
        return lambda text, at: text.startswith(literal, at)
    fixed = [(i, character) for i, character in enumerate(segment) if character is not None]
    return lambda text, at: all(text[at + i] == character for i, character in fixed)


def _finder(segment: _Segment) -> _Finder:
    literal = _literal(segment)
    if literal is not None:
        return lambda text, start, end: text.find(literal, start, end)
    # Bit i of the state: the last i + 1 characters fit the segment's first i + 1. One shift
    # per character of the text moves all attempts on together (the shift-and method).
    anything = sum(1 << i for i, character in enumerate(segment) if character is None)
    masks: dict[str, int] = {}
    for i, character in enumerate(segment):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << i
    length = len(segment)
    goal = 1 << (length - 1)

    def find(text: str, start: int, end: int) -> int:
        state = 0
        for at, character in enumerate(text[start:end], start + 1):
            state = (state << 1 | 1) & masks.get(character, anything)
            if state & goal:
                return at - length
        return -1

    return find
