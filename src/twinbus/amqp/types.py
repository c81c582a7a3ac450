"""AMQP types that Python lacks, so that a decoded value is encoded again as what it was.

The rest maps by itself: `int` is long, `float` double, `str` string, `bytes` binary,
`bool` boolean, `None` null, `list`, `dict` and `uuid.UUID` what their names say.
Values are not range-checked here; the codec does that when it writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=False)
class Symbol(str):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Char:
    """One character. Not a `str`: programs whose characters have 16 bits send half of one too, and
    a text with that in it can neither be written to the journal nor be sent."""

    __slots__ = ("character",)

    def __init__(self, character: str) -> None:
        self.character = character

    @property
    def is_half(self) -> bool:
        """Whether it is one of the two numbers that UTF-16 makes of a character."""
        return chr(0xD800) <= self.character <= chr(0xDFFF)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Char) and self.character == other.character

    def __hash__(self) -> int:
        return hash(self.character)

    def __str__(self) -> str:
        """A text that can always be written."""
        return "\N{REPLACEMENT CHARACTER}" if self.is_half else self.character

    def __repr__(self) -> str:
        return f"Char({self.character!r})"


@mypyc_attr(native_class=False)
class UByte(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class UShort(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class UInt(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class ULong(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Byte(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Short(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Int(int):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Milliseconds since the Unix epoch."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Float32(float):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal32(bytes):
    """The four bytes as they are; `decimals` knows the number."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal64(bytes):
    __slots__ = ()


@mypyc_attr(native_class=False)
class Decimal128(bytes):
    __slots__ = ()


WHOLE_NUMBERS: Final = (UByte, UShort, UInt, ULong, Byte, Short, Int, int)
DECIMALS: Final = (Decimal32, Decimal64, Decimal128)

# The names that the standard gives, by the Python type; what holds other values is not here.
TYPE_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Byte: "byte",
    Short: "short",
    Int: "int",
    int: "long",
    Float32: "float",
    float: "double",
    Decimal32: "decimal32",
    Decimal64: "decimal64",
    Decimal128: "decimal128",
    Char: "char",
    Timestamp: "timestamp",
    UUID: "uuid",
    bytes: "binary",
    str: "string",
    Symbol: "symbol",
}


@mypyc_attr(native_class=False)
class AmqpArray(list[object]):
    """Values of one type, with the constructor they share on the wire.

    `code` is a format code such as ARRAY_OF_UUID; a described array also has a descriptor.
    """

    def __init__(
        self, items: Iterable[object], code: int, descriptor: object | None = None
    ) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor


ARRAY_OF_LONG = 0x81
ARRAY_OF_TIMESTAMP = 0x83
ARRAY_OF_UUID = 0x98
ARRAY_OF_STRING = 0xB1
ARRAY_OF_SYMBOL = 0xB3


@mypyc_attr(native_class=False)
class Described:
    """A value with the descriptor that gives it meaning."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Described)
            and self.descriptor == other.descriptor
            and self.value == other.value
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"
