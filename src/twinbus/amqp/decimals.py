"""Decimal numbers as the standard has them: IEEE 754-2008, the coefficient a binary integer.

Sixteen bytes are a sign, fourteen bits of exponent and 113 of coefficient. The smaller forms
differ in how many bits each has.
"""

from decimal import Context, Decimal
from typing import Final

from twinbus.amqp.types import Decimal32, Decimal64, Decimal128

# Bits of the coefficient, and what is added to the exponent, by the number of bytes.
_FORMS: Final = {4: (23, 101), 8: (53, 398), 16: (113, 6176)}
_BIAS: Final = 6176
# Without traps: what does not fit becomes an infinity or zero, and nothing raises.
_CONTEXT: Final = Context(prec=34, Emin=-6143, Emax=6144, clamp=1, traps=[])

# The exponent's upper bits as the Python SDK reads them, two places too low, and as the standard
# has them: for all exponents from -32 to 95. That SDK is made for Azure, so the form is called so;
# what Azure really sends could not be looked at.
_AZURE_UPPER: Final = 0x0C
_UPPER: Final = 0x30


def read(raw: Decimal32 | Decimal64 | Decimal128) -> Decimal | None:
    """The number; None for an infinity, and for what is no number."""
    size = len(raw)
    coefficient_bits, bias = _FORMS[size]
    bits = int.from_bytes(raw, "big")
    if size == 16 and raw[0] & 0x7F == _AZURE_UPPER:
        bits ^= (_AZURE_UPPER ^ _UPPER) << 120
    form = bits >> 8 * size - 5 & 0xF
    if form == 0xF:
        return None
    if form >= 0xC:
        # The exponent is two bits further right, and the coefficient begins with 100.
        exponent = bits >> coefficient_bits - 2
        coefficient = 4 << coefficient_bits - 2 | bits & (1 << coefficient_bits - 2) - 1
    else:
        exponent = bits >> coefficient_bits
        coefficient = bits & (1 << coefficient_bits) - 1
    exponent = (exponent & (1 << 8 * size - 1 - coefficient_bits) - 1) - bias
    sign = -1 if raw[0] & 0x80 else 1
    return Decimal(sign * coefficient).scaleb(exponent, _CONTEXT)


def write(value: Decimal) -> Decimal128 | None:
    """The sixteen bytes, rounded to 34 digits; None if they cannot hold it."""
    sign, digits, exponent = _CONTEXT.plus(value).as_tuple()
    if not isinstance(exponent, int):
        return None
    coefficient = int("".join([str(digit) for digit in digits]))
    bits = sign << 127 | (exponent + _BIAS) << 113 | coefficient
    return Decimal128(bits.to_bytes(16, "big"))


def as_azure_has_it(first: int) -> int:
    """The first byte of a decimal128 in the form that the Python SDK can read.

    Its encoder writes the standard's form, which its decoder drops with the whole message.
    """
    return first & 0x80 | _AZURE_UPPER if first & 0x7F == _UPPER else first


def as_the_standard_has_it(first: int) -> int:
    """The other way round."""
    return first & 0x80 | _UPPER if first & 0x7F == _AZURE_UPPER else first
