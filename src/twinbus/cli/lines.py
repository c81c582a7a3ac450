"""Messages in a file of JSON lines, as `export` writes and `import` and `send --lines` read them.

A path goes in; objects come out, each with the place where it stands, for whatever is said of it.
"""

import json
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from twinbus.cli.failures import CommandError
from twinbus.forms.message_form import Encoded, from_json


def can_be_read_twice(path: Path) -> bool:
    """Whether to check it before anything is sent; a pipe gives what it has only once."""
    return str(path) != "-" and stat.S_ISREG(path.stat().st_mode)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, and where each of them is; - is standard input."""
    opened: Any = nullcontext(sys.stdin) if str(path) == "-" else path.open(encoding="utf-8")
    with opened as file:
        for number, line in enumerate(_lines(file, path), 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _object(line, place)


def encoded(message: dict[str, Any], place: str) -> Encoded:
    """A message ready to be sent."""
    try:
        return from_json(message)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{place}: {error}") from error


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{place}: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"{place}: a message is an object")
    return found


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no text in UTF-8: {error}") from error
