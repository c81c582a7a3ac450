"""The SQL language, from text to closure.

Importing this module brings lark and costs some 100 ms; building the parser as much again.
Hence `filter` and `action` import it when the first SQL rule is made, and a broker without
one never does.
"""

from collections.abc import Mapping

from twinbus.filters.action import Step
from twinbus.filters.compiler import Compiler
from twinbus.filters.message import Test
from twinbus.filters.parser import parse_action, parse_filter
from twinbus.filters.values import Value


def compile_filter(expression: str, parameters: Mapping[str, Value] | None) -> Test:
    return Compiler(parameters).test(parse_filter(expression))


def compile_action(expression: str, parameters: Mapping[str, Value] | None) -> list[Step]:
    compiler = Compiler(parameters)
    return [compiler.step(statement) for statement in parse_action(expression)]
