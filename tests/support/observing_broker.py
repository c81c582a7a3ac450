"""`python -m tests.support.observing_broker serve …`: the broker as users run it, and observing,
although nothing captures: what it writes down, and what that costs, is looked at by itself."""

from __future__ import annotations

from typing import Any

from twinbus.server import service


class ObservingService(service.Service):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named | {"observing": True})


if __name__ == "__main__":
    # Before the command line takes its own look at the module.
    service.Service = ObservingService  # type: ignore[misc]
    from twinbus.cli.main import main

    main()
