"""SQL filters, correlation filters and actions (E8).

A rule's text or fields go in; objects that the engine asks about each message come out. A
bad rule is a FilterError with the column of its fault when it is made; a good rule that
fails on one message is an EvaluationError, whose `kind` becomes the DeadLetterReason (D3).
Whatever the rule or the message holds, a filter ends soon: expressions have at most 1,024
characters, nest at most 64 deep, and LIKE does not backtrack.
"""

from twinbus.filters.action import Action, sql_action
from twinbus.filters.correlation import CorrelationFilter, correlation_filter, value_key
from twinbus.filters.errors import ActionError, EvaluationError, FilterError
from twinbus.filters.filter import FALSE_FILTER, TRUE_FILTER, Filter, sql_filter
from twinbus.filters.message import MessageView, MutableMessageView
from twinbus.filters.values import MISSING, Missing, Value

__all__ = [
    "FALSE_FILTER",
    "MISSING",
    "TRUE_FILTER",
    "Action",
    "ActionError",
    "CorrelationFilter",
    "EvaluationError",
    "Filter",
    "FilterError",
    "MessageView",
    "Missing",
    "MutableMessageView",
    "Value",
    "correlation_filter",
    "sql_action",
    "sql_filter",
    "value_key",
]
