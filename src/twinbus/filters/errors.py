"""What can go wrong with a filter or an action, and when.

`FilterError`: the rule is bad, and is refused when it is made. `EvaluationError`: the rule
is good but fails on one message (D3, D6). Nothing else may leave this package.
"""


class FilterError(ValueError):
    """A filter or action that cannot be made: what is wrong, and where."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(f"{message} (at position {position})")
        #: Column of the fault in the expression, counted from 0.
        self.position = position


class EvaluationError(Exception):
    """A filter that failed on one message."""

    #: What a message that is dead-lettered for it gets as DeadLetterReason (D3).
    kind = "FilterException"


class ActionError(EvaluationError):
    """An action that failed on one message."""

    kind = "RuleActionException"
