"""The events of pairs as the console reads them."""

import json
from pathlib import Path

from twinbus.admin.console.events import PairEvents


def test_an_odd_line_hides_no_other(tmp_path: Path) -> None:
    parked = {"event": "MessagesBacklogged", "pair": "p", "client": "c", "path": "q"}
    lines = [
        json.dumps({**parked, "count": 2}),
        *(json.dumps({**parked, "count": odd}) for odd in ("x", [1], None, 1e999, {})),
        "[" * 100_000,
        "no JSON",
        "5",
        json.dumps({**parked, "count": 3}),
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (told,) = PairEvents(tmp_path).look()
    assert (told["path"], told["parked"]) == ("q", 5)
