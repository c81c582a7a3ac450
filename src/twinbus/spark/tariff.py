"""What operations cost (C1): a TOML file in, prices out.

The file names a currency and, under `per_million`, the price of a million billable units of
each kind of operation. A kind that is not named costs nothing.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinbus.capture.schema import OPERATIONS


class TariffError(ValueError):
    """A tariff file cannot be used; the text says why."""


@dataclass(frozen=True)
class Tariff:
    currency: str
    # Of each kind of operation, what a million units cost.
    per_million: dict[str, float]


def load_tariff(path: Path | None = None) -> Tariff:
    """Read a tariff file, or the one that comes with the package."""
    source = path or Path(__file__).with_name("tariff.toml")
    try:
        document = tomllib.loads(source.read_text())
    except OSError as error:
        raise TariffError(f"The tariff {source} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise TariffError(f"The tariff {source} is not TOML: {error}.") from error
    try:
        return _tariff(document)
    except ValueError as error:
        raise TariffError(f"The tariff {source}: {error}") from error


def _tariff(document: dict[str, Any]) -> Tariff:
    currency, prices = document.get("currency"), document.get("per_million")
    if not isinstance(currency, str) or not currency:
        raise ValueError('`currency` must be a text, for example "USD".')
    if not isinstance(prices, dict):
        raise ValueError("a table `per_million` must give a price by kind of operation.")
    strange = sorted({*document} - {"currency", "per_million"})
    if strange:
        raise ValueError(f"`{strange[0]}` is unknown; only `currency` and `per_million` are used.")
    for kind, price in prices.items():
        if kind not in OPERATIONS:
            raise ValueError(f"`{kind}` is no kind of operation; use {', '.join(OPERATIONS)}.")
        if isinstance(price, bool) or not isinstance(price, int | float) or not price >= 0:
            raise ValueError(f"the price of `{kind}` must be a number that is not negative.")
    return Tariff(currency, {kind: float(price) for kind, price in prices.items()})
