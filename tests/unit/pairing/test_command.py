"""What `twinbus syphon` prints: names and reasons that others wrote are text and nothing else."""

from io import StringIO

from rich.console import Console

from twinbus.pairing.command import Tally
from twinbus.pairing.events import MessageDeadLettered, MessageSyphoned, SyphonDeferred

# Rich would end a style that was never begun, and the terminal clear its screen.
TEXT = "a[/bold]\x1b[2Jb"
SHOWN = "a[/bold]\ufffd[2Jb"


def test_nothing_steers_the_terminal() -> None:
    out = StringIO()
    tally = Tally(Console(file=out, width=200))
    tally.count(MessageSyphoned(TEXT, "q"))
    tally.count(SyphonDeferred(TEXT, "q", TEXT))
    tally.count(MessageDeadLettered("q", TEXT, ""))
    tally.report()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count(SHOWN) == 7
