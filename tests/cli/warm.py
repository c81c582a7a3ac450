"""Runs commands each in a process of its own, forked off one that has loaded everything.

A line of JSON goes in: arguments, environment, and the files that are to be standard input,
output and error. The exit code comes out. Loading the SDK anew for each of many commands
would take most of the tests' time; all else is as if the command had been started afresh.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout, suppress
from typing import Any

import azure.servicebus.management
import pydantic
import rich.progress
import rich.table
import typer

import twinbus.cli.examination
import twinbus.pairing
import twinbus.spark.report.making
from twinbus.cli.main import app

# What commands load when they come to need it, for their work or to read their arguments (typer
# does that with pydantic, whose parts are loaded when they are named).
LOADED = (azure.servicebus.management, pydantic.TypeAdapter, rich, twinbus)
# The tree of commands, which `main` makes at each start: most commands take less time than that.
COMMAND = typer.main.get_command(app)


def run(order: dict[str, Any]) -> None:
    """In the child: become the command; never returns."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(order[name], flags, 0o600), number)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["twinbus", *order["arguments"]]
    code = 0
    try:
        COMMAND(prog_name="twinbus")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    # The first command loads what typer needs to read arguments.
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        COMMAND(["--version"])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
