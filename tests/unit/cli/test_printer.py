"""What others wrote reaches a terminal as text only; programs get it as it is."""

import json

import pytest
import typer

from twinbus.cli.failures import CommandError, one_line_errors
from twinbus.cli.printer import Printer

TEXT = "a\x1b[31mb"


@pytest.mark.parametrize("value", [TEXT, {TEXT: 1}, [TEXT]], ids=["text", "object", "list"])
def test_nothing_steers_the_terminal(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(json_output=False)
    printer.rows([{"name": value}], ("name",))
    printer.record({"name": value})
    printer.result({}, TEXT)
    printer.aside(TEXT)
    with pytest.raises(typer.Exit), one_line_errors():
        raise CommandError(TEXT)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert said.out.count("[31mb") == 3
    assert said.err.count("a\ufffd[31mb") == 2


def test_programs_get_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(json_output=True).rows([{"name": TEXT}], ("name",))
    assert json.loads(capsys.readouterr().out) == [{"name": TEXT}]
