"""The shape of an expression between its text and its closure.

Made by the parser, consumed by the compiler; every node knows the column it came from.
"""

from dataclasses import dataclass
from typing import TypeAlias

from twinbus.filters.errors import FilterError
from twinbus.filters.message import SYSTEM_NAMES, SYSTEM_PROPERTIES, SystemProperty
from twinbus.filters.values import Value


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value
    position: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """`@name`; the name is case-folded and without its sign."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class UserProperty:
    #: As written; views are asked for it case-folded.
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class SystemReference:
    """`sys.Name`."""

    row: SystemProperty
    position: int


@dataclass(frozen=True, slots=True)
class NamedProperty:
    """`property(name)`, whose name is itself worked out."""

    name: "Operand"
    position: int


@dataclass(frozen=True, slots=True)
class NewId:
    position: int


@dataclass(frozen=True, slots=True)
class Signed:
    symbol: str
    operand: "Operand"
    position: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators of one rank, from left to right.

    A list and not a tree: `a+a+a+…` must not nest as deep as it is long.
    """

    first: "Operand"
    rest: tuple[tuple[str, "Operand"], ...]
    position: int


Property: TypeAlias = UserProperty | SystemReference
Operand: TypeAlias = Constant | Parameter | Property | NamedProperty | NewId | Signed | Chain


@dataclass(frozen=True, slots=True)
class Comparison:
    symbol: str
    left: Operand
    right: Operand
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    operand: Operand
    choices: tuple[Operand, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    operand: Operand
    pattern: Operand
    escape: Operand | None
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Operand
    position: int


@dataclass(frozen=True, slots=True)
class Exists:
    operand: Operand
    position: int


@dataclass(frozen=True, slots=True)
class Negated:
    test: "Test"
    position: int


@dataclass(frozen=True, slots=True)
class Conjunction:
    tests: tuple["Test", ...]
    position: int


@dataclass(frozen=True, slots=True)
class Disjunction:
    tests: tuple["Test", ...]
    position: int


Test: TypeAlias = (
    Comparison | Membership | Like | IsNull | Exists | Negated | Conjunction | Disjunction
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`SET target = operand`."""

    target: Property
    operand: Operand
    position: int


@dataclass(frozen=True, slots=True)
class Removal:
    """`REMOVE target`."""

    target: Property
    position: int


Statement: TypeAlias = Assignment | Removal


def property_in(scope: str, name: str, position: int) -> Property:
    """Find out which property is meant."""
    if scope.casefold() == "user":
        return UserProperty(name, position)
    if scope.casefold() != "sys":
        raise FilterError(
            f"There is no scope '{scope}', only sys and user; "
            f"if the name has a dot in it, write [{scope}.{name}].",
            position,
        )
    row = SYSTEM_PROPERTIES.get(name.casefold())
    if row is None:
        raise FilterError(
            f"There is no system property '{name}'; there are {SYSTEM_NAMES}.", position
        )
    return SystemReference(row, position)
