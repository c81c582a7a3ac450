"""Scenarios that run side by side, each reported as a test of its own.

Nearly all the time of a live scenario is spent waiting for connections to open and close, so
a module's scenarios share one event loop. Not all at once: what they compute would add up to
more than the time-outs that they are about.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

Case = Callable[[Any], Coroutine[Any, Any, None]]
CASE_SECONDS_MAX = 50
AT_ONCE = 8


class Cases:
    """The scenarios of one module; each is a coroutine function that takes its world."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def __call__(self, case: Case) -> Case:
        self._cases[case.__name__] = case
        return case

    @property
    def names(self) -> list[str]:
        return list(self._cases)

    def run(self, world: Callable[[], AbstractContextManager[Any]]) -> "Outcomes":
        """Run them all, each in a world of its own."""
        return Outcomes(asyncio.run(self._run_all(world)))

    async def _run_all(
        self, world: Callable[[], AbstractContextManager[Any]]
    ) -> dict[str, BaseException | None]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def run(case: Case) -> None:
            async with turns:
                with world() as own:
                    async with asyncio.timeout(CASE_SECONDS_MAX):
                        await case(own)

        results = await asyncio.gather(
            *(run(case) for case in self._cases.values()), return_exceptions=True
        )
        return dict(zip(self._cases, results, strict=True))


class Outcomes:
    def __init__(self, results: dict[str, BaseException | None]) -> None:
        self._results = results

    def check(self, name: str) -> None:
        """Fail as the scenario failed."""
        result = self._results[name]
        if result is not None:
            raise result
