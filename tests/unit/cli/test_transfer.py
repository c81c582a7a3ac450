"""Where `twinbus export` writes to."""

from pathlib import Path

import pytest

from twinbus.cli.transfer import _whole_file


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_lies_in_the_way_is_neither_used_nor_followed(tmp_path: Path, kind: str) -> None:
    """An export is its owner's to read, though somebody else made a file of its name before."""
    part, other = tmp_path / "x.jsonl.part", tmp_path / "other"
    other.write_text("not to be touched")
    if kind == "link":
        part.symlink_to(other)
    else:
        part.touch()
        part.chmod(0o666)
    with _whole_file(tmp_path / "x.jsonl") as out:
        out.write("a message\n")
    made = tmp_path / "x.jsonl"
    assert not made.is_symlink()
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.read_text() == "a message\n"
    assert other.read_text() == "not to be touched"
    assert not part.exists()


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    made = tmp_path / "x.jsonl"
    made.write_text("of before")

    def export() -> None:
        with _whole_file(made) as out:
            out.write("a message\n")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        export()
    assert made.read_text() == "of before"
    assert list(tmp_path.iterdir()) == [made]
