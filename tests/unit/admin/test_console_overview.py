"""The console's overview is looked up anew, whatever is done to the clock."""

from __future__ import annotations

from tests.unit.engine.engine_kit import Kit
from twinbus.admin.console.overview import FRESH_MS, Overview


async def paths(overview: Overview) -> list[str]:
    found = await overview.changes(0, lambda path: True)
    return sorted(row["path"] for row in found["rows"])


async def test_a_look_stays_fresh_for_a_while() -> None:
    kit = Kit()
    kit.queue("first")
    overview = Overview(kit.namespace, lambda: kit.now_ms)
    assert await paths(overview) == ["first"]
    kit.queue("second")
    kit.now_ms += FRESH_MS - 1
    assert await paths(overview) == ["first"]
    kit.now_ms += 1
    assert await paths(overview) == ["first", "second"]


async def test_what_is_gone_is_told_to_those_who_knew_it() -> None:
    """S2: whoever may not see an entity does not hear its name when it goes."""
    kit = Kit()
    kit.queue("mine")
    kit.queue("hidden")
    overview = Overview(kit.namespace, lambda: kit.now_ms)
    since = (await overview.changes(0, lambda path: True))["version"]
    kit.namespace.delete("mine")
    kit.namespace.delete("hidden")
    kit.now_ms += FRESH_MS
    assert (await overview.changes(since, lambda path: path == "mine"))["gone"] == ["mine"]


async def test_a_clock_that_was_set_back_does_not_freeze_it() -> None:
    kit = Kit()
    overview = Overview(kit.namespace, lambda: kit.now_ms)
    assert await paths(overview) == []
    kit.queue("new")
    kit.now_ms -= 3600
    assert await paths(overview) == ["new"]
