"""From text to tree: the one place that knows lark.

Text goes in, nodes of `tree` come out, or a FilterError with the column of the fault. The
parser is LALR with its actions run as it reads, so that neither its time nor its stack
depends on how deep the text nests.
"""

from functools import cache
from importlib.resources import files
from typing import Any, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from twinbus.filters import tree
from twinbus.filters.errors import FilterError
from twinbus.filters.values import INTEGER_MAX

EXPRESSION_CHARS_MAX = 1_024
STATEMENTS_MAX = 32

# What the parser would have taken, in the order in which to say it. Where a value may stand,
# that is all there is to say.
_VALUE = "NUMBER"
_WORDS = {
    "NAME": "a property name",
    "_SET": "SET or REMOVE",
    "EQUAL": "'='",
    "RELATION": "another comparison",
    "SIGN": "an operator",
    "NULL": "NULL",
    "_IN": "IN or LIKE",
    "_AND": "AND or OR",
    "LPAR": "'('",
    "COMMA": "','",
    "RPAR": "')'",
    "$END": "the end",
}
_ENDLESS = {"'": "text", "[": "name", '"': "name"}


def parse_filter(expression: str) -> tree.Test:
    """Read a filter's expression."""
    return cast(tree.Test, _parse(expression, "filter"))


def parse_action(expression: str) -> tuple[tree.Statement, ...]:
    """Read an action's statements."""
    statements = cast(tuple[tree.Statement, ...], _parse(expression, "action"))
    if len(statements) > STATEMENTS_MAX:
        raise FilterError(
            f"An action may have at most {STATEMENTS_MAX} statements; split it over two rules.",
            statements[STATEMENTS_MAX].position,
        )
    return statements


def _parse(expression: str, start: str) -> object:
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise FilterError(
            f"The expression has {len(expression)} characters; at most {EXPRESSION_CHARS_MAX} "
            "are allowed. Use a correlation filter or several rules.",
            EXPRESSION_CHARS_MAX,
        )
    try:
        return _lark().parse(expression, start=start)
    except UnexpectedInput as error:
        raise _syntax_error(expression, error) from None


@cache
def _lark() -> Lark:
    grammar = files(__package__).joinpath("sql.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", start=["filter", "action"], transformer=_Builder())


def _syntax_error(expression: str, error: UnexpectedInput) -> FilterError:
    if not isinstance(error, UnexpectedToken):
        position = cast(int, error.pos_in_stream)
        character = expression[position]
        if character in _ENDLESS:
            return FilterError(
                f"The {_ENDLESS[character]} that begins here never ends; close it.", position
            )
        return FilterError(
            f"{character!r} means nothing here; if it is part of a name, write [name].", position
        )
    wanted = error.accepts or error.expected
    if _VALUE in wanted:
        words = "a value or a property name"
    else:
        words = " or ".join(word for terminal, word in _WORDS.items() if terminal in wanted)
    if error.token.type == "$END":
        return FilterError(f"Expected {words}, but the expression ends.", len(expression))
    found = repr(str(error.token)[:40])
    return FilterError(f"Expected {words}, but there is {found}.", _position(error.token))


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Turns each rule of the grammar into a node, as soon as it is read."""

    def filter(self, test: tree.Test) -> tree.Test:
        return test

    def action(self, *statements: tree.Statement) -> tuple[tree.Statement, ...]:
        return statements

    def disjunction(self, *tests: tree.Test) -> tree.Test:
        return tree.Disjunction(tests, tests[0].position)

    def conjunction(self, *tests: tree.Test) -> tree.Test:
        return tree.Conjunction(tests, tests[0].position)

    def negated(self, test: tree.Test) -> tree.Test:
        # NOT NOT x is x, unknown included; so a row of NOTs does not nest.
        return test.test if isinstance(test, tree.Negated) else tree.Negated(test, test.position)

    def comparison(self, left: tree.Operand, symbol: Token, right: tree.Operand) -> tree.Test:
        return tree.Comparison(str(symbol), left, right, _position(symbol))

    def choices(self, *operands: tree.Operand) -> tuple[tree.Operand, ...]:
        return operands

    def membership(self, operand: tree.Operand, choices: tuple[tree.Operand, ...]) -> tree.Test:
        return tree.Membership(operand, choices, operand.position)

    def no_membership(self, operand: tree.Operand, choices: tuple[tree.Operand, ...]) -> tree.Test:
        return self.negated(self.membership(operand, choices))

    def like(
        self, operand: tree.Operand, pattern: tree.Operand, escape: tree.Operand | None = None
    ) -> tree.Test:
        return tree.Like(operand, pattern, escape, operand.position)

    def not_like(
        self, operand: tree.Operand, pattern: tree.Operand, escape: tree.Operand | None = None
    ) -> tree.Test:
        return self.negated(self.like(operand, pattern, escape))

    def is_null(self, operand: tree.Operand, _null: Token) -> tree.Test:
        return tree.IsNull(operand, operand.position)

    def is_not_null(self, operand: tree.Operand, null: Token) -> tree.Test:
        return self.negated(self.is_null(operand, null))

    def exists(self, operand: tree.Operand) -> tree.Test:
        if isinstance(operand, tree.NewId):
            raise FilterError("EXISTS() needs a property.", operand.position)
        return tree.Exists(operand, operand.position)

    def sum(self, first: tree.Operand, *rest: Any) -> tree.Operand:
        pairs = tuple((str(s), o) for s, o in zip(rest[::2], rest[1::2], strict=True))
        return tree.Chain(first, pairs, first.position)

    product = sum

    def signed(self, sign: Token, operand: tree.Operand) -> tree.Operand:
        if isinstance(operand, tree.Constant) and operand.value == INTEGER_MAX + 1 and sign == "-":
            return tree.Constant(-INTEGER_MAX - 1, _position(sign))
        return tree.Signed(str(sign), operand, _position(sign))

    def number(self, token: Token) -> tree.Operand:
        position = _position(token)
        if token.isdigit():
            # One more than fits is left to `signed`, and refused by the compiler if alone.
            if int(token) > INTEGER_MAX + 1:
                raise FilterError(f"{token[:40]} does not fit 64 bits.", position)
            return tree.Constant(int(token), position)
        if float(token) == float("inf"):
            raise FilterError(f"{token[:40]} is larger than any double.", position)
        return tree.Constant(float(token), position)

    def string(self, token: Token) -> tree.Operand:
        return tree.Constant(token[1:-1].replace("''", "'"), _position(token))

    def true(self, token: Token) -> tree.Operand:
        return tree.Constant(True, _position(token))

    def false(self, token: Token) -> tree.Operand:
        return tree.Constant(False, _position(token))

    def null(self, token: Token) -> tree.Operand:
        return tree.Constant(None, _position(token))

    def parameter(self, token: Token) -> tree.Operand:
        return tree.Parameter(token[1:].casefold(), _position(token))

    def property(self, *names: Token) -> tree.Property:
        scope = _unquoted(names[0]) if len(names) == 2 else "user"
        return tree.property_in(scope, _unquoted(names[-1]), _position(names[0]))

    def function(self, name: Token, *arguments: tree.Operand) -> tree.Operand:
        folded, position = name.casefold(), _position(name)
        if folded == "newid" and not arguments:
            return tree.NewId(position)
        if folded in ("property", "p") and len(arguments) == 1:
            return tree.NamedProperty(arguments[0], position)
        raise FilterError(
            f"There is no function {name}() with {len(arguments)} arguments; "
            "there are newid(), property(name) and p(name).",
            position,
        )

    def assignment(
        self, target: tree.Property, _equal: Token, operand: tree.Operand
    ) -> tree.Statement:
        _check_writable(target)
        return tree.Assignment(target, operand, target.position)

    def removal(self, target: tree.Property) -> tree.Statement:
        _check_writable(target)
        if isinstance(target, tree.SystemReference) and target.row.required:
            raise FilterError("Every message has this property; SET it instead.", target.position)
        return tree.Removal(target, target.position)


def _position(token: Token) -> int:
    return cast(int, token.start_pos)


def _unquoted(token: Token) -> str:
    if token.type == "NAME":
        return str(token)
    return token[1:-1].replace(token[-1] * 2, token[-1])


def _check_writable(target: tree.Property) -> None:
    if isinstance(target, tree.SystemReference) and not target.row.writable:
        raise FilterError("This system property is read-only.", target.position)
