"""Keeps the capturing process of a broker alive, and stops it when everything is captured.

A process of its own, so that making Parquet never takes the interpreter from the broker's loop.
The child's standard input is its leash: when it closes, because the broker stops or was killed,
the child captures what is durable and ends. On standard output it says how far it has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

_BACK_OFF_S_MIN = 0.5
_BACK_OFF_S_MAX = 30.0
# What is captured after the broker's end is little, but a disk may be slow.
_DRAIN_S_MAX = 300.0


def command(data_dir: Path, root: Path, options: Sequence[str] = ()) -> list[str]:
    """The command that captures under supervision."""
    # Whatever lies in the current directory, it is the broker's own package that is run.
    own = [sys.executable, "-P", "-m", "twinbus", "capture", "run", str(data_dir), str(root)]
    return [*own, "--supervised", *options]


class Supervisor:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[object] | None = None
        self._is_stopping = False
        #: Everything up to this LSN is durably captured.
        self.captured_lsn = 0
        #: How often the child ended unasked since it last came farther.
        self.failures = 0

    @property
    def warning(self) -> str | None:
        """Whether capture fails, for people who do not read the log."""
        if not self.failures:
            return None
        return f"capture has failed since its last file ({self.failures} times): the log says why"

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def stop(self) -> None:
        """Let the child capture what is left, and see it end."""
        self._is_stopping = True
        if self._task is None:
            return
        if self._process is None:
            # Between two attempts: one more, for what the last one left.
            await self._end_task()
            self._task = asyncio.get_running_loop().create_task(self._run_once())
        else:
            self._let_go()
        try:
            await asyncio.wait_for(asyncio.shield(self._task), _DRAIN_S_MAX)
        except TimeoutError:
            log.error("capture did not finish in time; the next start goes on where it was")
            await self._end_task()

    async def _keep_running(self) -> None:
        delay_s = _BACK_OFF_S_MIN
        while not self._is_stopping:
            before = self.captured_lsn
            code = await self._run_once()
            if self._is_stopping and code:
                # It died on its way to the end: once more, for what it left.
                await self._run_once()
            if self._is_stopping:
                return
            self.failures += 1
            if self.captured_lsn > before:
                delay_s = _BACK_OFF_S_MIN
            log.error(
                "capture ended and is started again", extra={"code": code, "delay_s": delay_s}
            )
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _BACK_OFF_S_MAX)

    async def _run_once(self) -> int:
        # A session of its own: Ctrl-C is meant for the broker, which tells the child in time.
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            log.error("capture cannot be started: %s", error)
            return 1
        if self._is_stopping:
            self._let_go()
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                with contextlib.suppress(ValueError, KeyError):
                    self._note(int(json.loads(line)["captured_lsn"]))
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._process = None

    def _note(self, captured_lsn: int) -> None:
        # A child that only started has not shown yet that it can write a file.
        if captured_lsn > self.captured_lsn:
            self.failures = 0
        self.captured_lsn = captured_lsn

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def _end_task(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def progress_line(captured_lsn: int) -> str:
    """What the child prints for its supervisor."""
    return json.dumps({"captured_lsn": captured_lsn})
