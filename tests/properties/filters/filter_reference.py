"""SQL filters once more, as plainly as can be: trees drawn by Hypothesis, written as SQL text
and worked out by walking the tree. Slow, and without any regard to what is constant."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from twinbus.filters import MISSING, Missing, Value


@dataclass
class Message:
    properties: dict[str, Any]

    def system(self, name: str) -> Value:
        return None

    def user(self, name: str) -> Value | Missing:
        return self.properties.get(name, MISSING)

    def new_id(self) -> UUID:
        return UUID(int=0)


class Fault(Exception):
    """The reference's way to say that an expression fails on a message."""


# A node is (operator, parts, whether to write it in parentheses).
@dataclass(frozen=True)
class Node:
    operator: str
    parts: tuple[Any, ...]
    parentheses: bool = False


INTEGERS = st.integers(-5, 5) | st.sampled_from([2**62, 2**63 - 1, -(2**63), 2**53 + 1])
FLOATS = st.floats(-4, 4).map(lambda x: round(x, 2)) | st.sampled_from([1e300, 2.0**53])
TEXTS = st.text("ab%_'", max_size=4)
VALUES = INTEGERS | FLOATS | TEXTS | st.booleans()
NAMES = st.sampled_from(["a", "b", "c", "d", "missing"])
MESSAGES = st.fixed_dictionaries({}, optional={name: VALUES | st.none() for name in "abcd"}).map(
    Message
)

_PROPERTIES = st.builds(Node, st.just("property"), st.tuples(NAMES), st.booleans())
_CONSTANTS = st.builds(Node, st.just("constant"), st.tuples(VALUES | st.none()), st.booleans())


def _operands(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    # The left-most leaf is a property, so that nothing is worked out when the rule is made:
    # there a fault is another error, at another time.
    symbols = st.sampled_from(list("+-*/%"))
    return st.builds(
        Node, symbols, st.tuples(inner, inner | _CONSTANTS), st.booleans()
    ) | st.builds(Node, st.sampled_from(["neg", "pos"]), st.tuples(inner), st.booleans())


VARIABLES = st.recursive(_PROPERTIES, _operands, max_leaves=4)
OPERANDS = VARIABLES | _CONSTANTS


def _leaf_tests() -> st.SearchStrategy[Node]:
    relations = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    choices = st.lists(OPERANDS, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Node, relations, st.tuples(OPERANDS, OPERANDS), st.booleans()),
        st.builds(Node, st.sampled_from(["IN", "NOT IN"]), st.tuples(OPERANDS, choices)),
        st.builds(Node, st.sampled_from(["LIKE", "NOT LIKE"]), st.tuples(OPERANDS, TEXTS)),
        st.builds(Node, st.sampled_from(["IS NULL", "IS NOT NULL"]), st.tuples(OPERANDS)),
        st.builds(Node, st.just("EXISTS"), st.tuples(NAMES)),
    )


def _compound_tests(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Node, st.sampled_from(["AND", "OR"]), several, st.booleans()) | st.builds(
        Node, st.just("NOT"), st.tuples(inner), st.booleans()
    )


TESTS = st.recursive(_leaf_tests(), _compound_tests, max_leaves=5)

_RANKS = {"OR": 0, "AND": 1, "NOT": 2, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "neg": 7, "pos": 7}
_LEAF_TEST_RANK = 3
_ATOM_RANK = 8


def rank(node: Node) -> int:
    if node.operator in ("property", "constant"):
        return _ATOM_RANK
    return _RANKS.get(node.operator, _LEAF_TEST_RANK)


def write(node: Node, rank_min: int = 0) -> str:
    """Write SQL text with as few parentheses as the ranks allow, plus those drawn."""
    text = _write(node)
    return f"({text})" if node.parentheses or rank(node) < rank_min else text


def _write(node: Node) -> str:
    operator, parts = node.operator, node.parts
    if operator == "property":
        return str(parts[0])
    if operator == "constant":
        return write_constant(parts[0])
    if operator in ("AND", "OR"):
        return f" {operator} ".join(write(part, rank(node) + 1) for part in parts)
    if operator == "NOT":
        return f"NOT {write(parts[0], rank(node))}"
    if operator in ("neg", "pos"):
        return ("-" if operator == "neg" else "+") + " " + write(parts[0], rank(node))
    if operator == "EXISTS":
        return f"EXISTS({parts[0]})"
    if operator in ("IN", "NOT IN"):
        choices = ", ".join(write(choice, 5) for choice in parts[1])
        return f"{write(parts[0], 5)} {operator} ({choices})"
    if operator in ("LIKE", "NOT LIKE"):
        return f"{write(parts[0], 5)} {operator} {write_constant(parts[1])}"
    if operator in ("IS NULL", "IS NOT NULL"):
        return f"{write(parts[0], 5)} {operator}"
    left_min = rank(node) if operator in "+-*/%" else 5
    right_min = rank(node) + 1 if operator in "+-*/%" else 5
    return f"{write(parts[0], left_min)} {operator} {write(parts[1], right_min)}"


def write_constant(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return str(value).upper()
    # A sign would be an operator of its own; parentheses keep its rank out of the way.
    return f"({value!r})" if value < 0 else repr(value)


def value_of(node: Node, message: Message) -> Any:
    operator, parts = node.operator, node.parts
    if operator == "constant":
        return parts[0]
    if operator == "property":
        return message.properties.get(parts[0])
    values = [value_of(part, message) for part in parts]
    if None in values:
        return None
    if operator in ("neg", "pos"):
        return calculate("-" if operator == "neg" else "+", 0, values[0], sign=True)
    return calculate(operator, *values)


def calculate(operator: str, left: Any, right: Any, sign: bool = False) -> Any:
    if operator == "+" and not sign and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    for value in (left, right):
        if isinstance(value, (bool, str)):
            raise Fault
    if operator in "/%" and right == 0:
        raise Fault
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if operator == "%" and math.isinf(left):
            raise Fault
        if operator == "%":
            return math.fmod(left, right)
        if operator == "/":
            return left / right
    if operator == "/":
        result: Any = math.trunc(Fraction(left, right))
    elif operator == "%":
        result = left - right * math.trunc(Fraction(left, right))
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise Fault
    return result


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value)) if str(value)[0] != "-" or value else "-0"
    return str(value)


def outcome_of(node: Node, message: Message) -> bool | None:
    """Give True, False or None for unknown."""
    operator, parts = node.operator, node.parts
    if operator.startswith("NOT "):
        return _negated(outcome_of(Node(operator[4:], parts), message))
    if operator == "NOT":
        return _negated(outcome_of(parts[0], message))
    if operator in ("AND", "OR"):
        outcomes = []
        for part in parts:
            outcomes.append(outcome_of(part, message))
            if outcomes[-1] is (operator == "OR"):
                return operator == "OR"
        return None if None in outcomes else operator == "AND"
    if operator == "EXISTS":
        return parts[0] in message.properties
    left = value_of(parts[0], message)
    if operator == "IS NULL":
        return left is None
    if operator == "IS NOT NULL":
        return left is not None
    if operator == "LIKE":
        return like(left, parts[1]) if isinstance(left, str) else None
    if operator == "IN":
        outcomes = []
        for choice in parts[1]:
            outcomes.append(compare("=", left, value_of(choice, message)))
            if outcomes[-1]:
                return True
        return None if None in outcomes else False
    return compare(operator, left, value_of(parts[1], message))


def _negated(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


def compare(operator: str, left: Any, right: Any) -> bool | None:
    for kinds in ((bool,), (str,), (int, float)):
        if isinstance(left, kinds) and isinstance(right, kinds):
            break
    else:
        return None
    if isinstance(left, bool) != isinstance(right, bool):
        return None
    if isinstance(left, bool) and operator not in ("=", "<>", "!="):
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    equal, less = left == right, left < right
    return {
        "=": equal,
        "<>": not equal,
        "!=": not equal,
        "<": less,
        "<=": less or equal,
        ">": left > right,
        ">=": left > right or equal,
    }[operator]


def like(text: str, pattern: str, escape: str | None = None) -> bool:
    """Match by trying every way."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and like(text[1:], rest[1:], escape)
    if head == "%":
        return any(like(text[i:], rest, escape) for i in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and like(text[1:], rest, escape)


def dangling(pattern: str, escape: str | None) -> bool:
    """Tell whether a pattern ends with an escape character that escapes nothing."""
    while pattern:
        if pattern == escape:
            return True
        pattern = pattern[2:] if pattern[0] == escape else pattern[1:]
    return False
