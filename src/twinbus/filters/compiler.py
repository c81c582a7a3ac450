"""From tree to closure: once per rule, so that a message costs only calls.

A tree and the rule's parameters go in, a function of a message comes out. What is constant
is worked out here, so that a fault in it is a FilterError and not a dead-lettered message.
A test gives True, False or None for unknown; AND and OR stop at the first outcome that
settles them, from left to right, and what they skip cannot fail.

Where the documents are silent: `EXISTS(sys.X)` asks whether X is set, and LIKE is unknown
for what is neither text nor GUID. `property('sys.X')` reaches a system property. `IS NULL`
takes any operand.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from twinbus.filters import tree
from twinbus.filters.action import Step, remove_user, set_system, set_user
from twinbus.filters.errors import EvaluationError, FilterError
from twinbus.filters.like import Matcher, compile_like
from twinbus.filters.message import Fetch, MessageView, Test
from twinbus.filters.tree import Constant
from twinbus.filters.values import (
    INTEGER_MAX,
    MIRRORED,
    MISSING,
    RELATIONS,
    Kind,
    Missing,
    Relation,
    Value,
    arithmetic,
    checked_value,
    compare,
    kind_of,
    signed,
)

# Each level costs the evaluation one or two frames of the interpreter's stack.
NESTING_MAX = 64


class Compiler:
    """Compiles the expressions of one rule."""

    def __init__(self, parameters: Mapping[str, Value] | None) -> None:
        self._parameters: dict[str, Value] = {}
        for name, value in (parameters or {}).items():
            self._parameters[name.removeprefix("@").casefold()] = checked_value(name, value)

    def test(self, node: tree.Test, depth: int = 0) -> Test:
        """Compile a test."""
        _check_depth(node, depth)
        match node:
            case tree.Comparison():
                return self._comparison(node, depth + 1)
            case tree.Membership():
                return self._membership(node, depth + 1)
            case tree.Like():
                return self._like(node, depth + 1)
            case tree.IsNull():
                fetch = self.fetch(node.operand, depth + 1)
                return lambda view: kind_of(fetch(view)) is Kind.UNKNOWN
            case tree.Exists():
                find = self.fetch(node.operand, depth + 1)
                return lambda view: find(view) is not MISSING
            case tree.Negated():
                return _negation(self.test(node.test, depth + 1))
            case tree.Conjunction():
                return _settled_by(False, [self.test(t, depth + 1) for t in node.tests])
            case tree.Disjunction():
                return _settled_by(True, [self.test(t, depth + 1) for t in node.tests])

    def step(self, node: tree.Statement) -> Step:
        """Compile a statement."""
        target = node.target
        if isinstance(node, tree.Assignment):
            operand = self.fetch(node.operand)
        elif isinstance(target, tree.UserProperty):
            return remove_user(target.name)
        else:
            operand = _fetch(Constant(None, node.position))
        if isinstance(target, tree.UserProperty):
            return set_user(target.name, operand)
        return set_system(target.row, operand)

    def fetch(self, node: tree.Operand, depth: int = 0) -> Fetch:
        """Compile an operand to a function, even if it is constant."""
        return _fetch(self._operand(node, depth))

    def _operand(self, node: tree.Operand, depth: int) -> Constant | Fetch:
        _check_depth(node, depth)
        match node:
            case Constant():
                if isinstance(node.value, int) and node.value > INTEGER_MAX:
                    raise FilterError(f"{node.value} does not fit 64 bits.", node.position)
                return node
            case tree.Parameter():
                if node.name not in self._parameters:
                    raise FilterError(f"Parameter @{node.name} has no value.", node.position)
                return Constant(self._parameters[node.name], node.position)
            case tree.UserProperty() | tree.SystemReference():
                return _property(node)
            case tree.NamedProperty():
                return self._named_property(node, depth + 1)
            case tree.NewId():
                return lambda view: view.new_id()
            case tree.Signed():
                return self._signed(node, depth + 1)
            case tree.Chain():
                return self._chain(node, depth + 1)

    def _named_property(self, node: tree.NamedProperty, depth: int) -> Fetch:
        name = self._operand(node.name, depth)
        if isinstance(name, Constant):
            return _property(_named(name.value, node.position))
        fetch_name = name

        def fetch(view: MessageView) -> Value | Missing:
            found = fetch_name(view)
            if kind_of(found) is Kind.UNKNOWN:
                return MISSING
            try:
                return _property(_named(found, node.position))(view)
            except FilterError as error:
                raise EvaluationError(str(error)) from None

        return fetch

    def _signed(self, node: tree.Signed, depth: int) -> Constant | Fetch:
        symbol, operand = node.symbol, self._operand(node.operand, depth)
        if isinstance(operand, Constant):
            value = operand.value
            return _folded(lambda: signed(symbol, value), node.position)
        fetch = operand
        return lambda view: signed(symbol, fetch(view))

    def _chain(self, node: tree.Chain, depth: int) -> Constant | Fetch:
        first = self._operand(node.first, depth)
        rest: list[tuple[str, Fetch]] = []
        for symbol, operand in node.rest:
            part = self._operand(operand, depth)
            if not rest and isinstance(first, Constant) and isinstance(part, Constant):
                first = _folded_sum(symbol, first, part)
            else:
                rest.append((symbol, _fetch(part)))
        if not rest:
            return first
        begin = _fetch(first)

        def fetch(view: MessageView) -> Value | Missing:
            total = begin(view)
            for symbol, part in rest:
                total = arithmetic(symbol, total, part(view))
            return total

        return fetch

    def _comparison(self, node: tree.Comparison, depth: int) -> Test:
        relation = RELATIONS[node.symbol]
        left, right = self._operand(node.left, depth), self._operand(node.right, depth)
        if isinstance(left, Constant):
            if isinstance(right, Constant):
                return _always(compare(relation, left.value, right.value))
            return _comparison_with(RELATIONS[MIRRORED[node.symbol]], right, left.value)
        if isinstance(right, Constant):
            return _comparison_with(relation, left, right.value)
        left_of, right_of = left, right
        return lambda view: compare(relation, left_of(view), right_of(view))

    def _membership(self, node: tree.Membership, depth: int) -> Test:
        fetch = self.fetch(node.operand, depth)
        choices = [self._operand(choice, depth) for choice in node.choices]
        fetches = [_fetch(choice) for choice in choices]
        # A set finds a text among texts or an integer among integers; in a mixed set True
        # would pass for 1.
        types = {type(c.value) if isinstance(c, Constant) else None for c in choices}
        plain = types.pop() if types in ({str}, {int}) else None
        members = {c.value for c in choices if isinstance(c, Constant)} if plain else set()

        def test(view: MessageView) -> bool | None:
            found = fetch(view)
            if type(found) is plain:
                return found in members
            outcome: bool | None = False
            for choice in fetches:
                equal = compare(operator.eq, found, choice(view))
                if equal:
                    return True
                if equal is None:
                    outcome = None
            return outcome

        return test

    def _like(self, node: tree.Like, depth: int) -> Test:
        fetch = self.fetch(node.operand, depth)
        parts = [self._operand(p, depth) for p in (node.pattern, node.escape) if p is not None]
        constants = [part.value for part in parts if isinstance(part, Constant)]
        if len(constants) == len(parts):
            try:
                matcher = _matcher(constants)
            except EvaluationError as error:
                raise FilterError(str(error), node.pattern.position) from None
            return lambda view: _is_like(fetch(view), matcher)
        fetches = [_fetch(part) for part in parts]
        return lambda view: _is_like(fetch(view), _matcher([part(view) for part in fetches]))


def _check_depth(node: tree.Test | tree.Operand, depth: int) -> None:
    if depth > NESTING_MAX:
        raise FilterError(f"Nested more than {NESTING_MAX} deep; write it flatter.", node.position)


def _fetch(operand: Constant | Fetch) -> Fetch:
    if not isinstance(operand, Constant):
        return operand
    value = operand.value
    return lambda view: value


def _folded(work_out: Callable[[], Value], position: int) -> Constant:
    try:
        return Constant(work_out(), position)
    except EvaluationError as error:
        raise FilterError(str(error), position) from None


def _folded_sum(symbol: str, left: Constant, right: Constant) -> Constant:
    return _folded(lambda: arithmetic(symbol, left.value, right.value), right.position)


def _property(node: tree.Property) -> Fetch:
    if isinstance(node, tree.UserProperty):
        folded = node.name.casefold()
        return lambda view: view.user(folded)
    name = node.row.name

    def fetch(view: MessageView) -> Value | Missing:
        value = view.system(name)
        return MISSING if value is None else value

    return fetch


def _named(name: object, position: int) -> tree.Property:
    if not isinstance(name, str):
        raise FilterError(f"property() needs a text, not {kind_of(name).value}.", position)
    scope, _, rest = name.partition(".")
    if rest and scope.casefold() in ("sys", "user"):
        return tree.property_in(scope, rest, position)
    return tree.UserProperty(name, position)


def _always(outcome: bool | None) -> Test:
    return lambda view: outcome


def _comparison_with(relation: Relation, fetch: Fetch, value: Value) -> Test:
    # Most comparisons are of a text with a text or of a number with a number; they need
    # no look at what might be converted.
    plain = type(value) if type(value) in (str, int, float) else None

    def test(view: MessageView) -> bool | None:
        found = fetch(view)
        if type(found) is plain:
            return relation(found, value)
        return compare(relation, found, value)

    return test


def _negation(test: Test) -> Test:
    def negated(view: MessageView) -> bool | None:
        outcome = test(view)
        return None if outcome is None else not outcome

    return negated


def _settled_by(settling: bool, tests: Sequence[Test]) -> Test:
    """AND is settled by the first False, OR by the first True."""

    def test(view: MessageView) -> bool | None:
        outcome: bool | None = not settling
        for part in tests:
            found = part(view)
            if found is settling:
                return settling
            if found is None:
                outcome = None
        return outcome

    return test


def _matcher(parts: Sequence[Value | Missing]) -> Matcher | None:
    """Compile a LIKE pattern and its escape character; None if either is unknown."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        if any(kind_of(part) is Kind.UNKNOWN for part in parts):
            return None
        raise EvaluationError("A LIKE pattern and its escape character must be texts.")
    try:
        return compile_like(*texts)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_like(value: Value | Missing, matcher: Matcher | None) -> bool | None:
    if matcher is None:
        return None
    if isinstance(value, str):
        return matcher(value)
    return matcher(str(value)) if isinstance(value, UUID) else None
