"""Bytes become nearly valid text: SQL from its words, an Atom entry from its elements.

Random bytes seldom get past a parser. Here each byte chooses a piece, so that what a fuzzer
changes is what the text says, not whether it can be read at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinbus.admin import forms
from twinbus.admin.markup import ATOM, INSTANCE, SERVICE_BUS, element, leaf

_WORDS = (
    "(", ")", ",", "=", "<>", "!=", "<", ">=", "+", "-", "*", "/", "%", ";", ".",
    "and", "or", "not", "in", "like", "escape", "is", "exists", "true", "false", "null",
    "set", "remove", "number", "text", "flag", "none", "real", "sys.Label", "user.text",
    "sys.MessageId", "[text]", '"number"', "'blue'", "'b%'", "'!'", "''''", "'_l_e'", "0", "7",
    "1.5", "1e308", "-1", "9223372036854775807", "99999999999999999999", "@p", "newid()",
    "property('text')", "p('x')", "left", "\n", "'", "[", "é", "most", "least", "when", "id",
    "bytes", "nan", "list", "@span", "@time", "sys.TimeToLive", "sys.ScheduledEnqueueTimeUtc",
    "sys.SessionId", "sys.PartitionKey", "x",
)  # fmt: skip
_TEXTS = (
    "", "true", "0", "-1", "5", "99999999999", "PT30S", "PT0S", "P10675199DT2H48M5.4775807S",
    "PT5M1S", "1=1", "a LIKE 'b'", "SET a = 1", "q", "sb://host/q", "2030-01-31T12:00:00Z",
    "0001-01-01T00:00:00", "Active", "Disabled", "<&\r\x00", "é", "x" * 300, "Send", "Manage",
)  # fmt: skip
_DESCRIPTIONS = (
    "QueueDescription", "TopicDescription", "SubscriptionDescription", "RuleDescription", "Other",
)  # fmt: skip
_INNER = (
    "DefaultRuleDescription", "Name", "Filter", "Action", "SqlExpression", "Parameters",
    "Properties", "KeyValueOfstringanyType", "Key", "Value", "AuthorizationRule", "Rights",
    "AccessRights", "KeyName", "PrimaryKey", "CreatedTime", "CorrelationId", "MessageId", "Label",
)  # fmt: skip
_ELEMENTS = _INNER + tuple(
    setting if isinstance(setting, str) else setting.element
    for table in (forms.QUEUE, forms.TOPIC, forms.SUBSCRIPTION)
    for setting in table
)
_TYPES = (
    "", "SqlFilter", "TrueFilter", "FalseFilter", "CorrelationFilter", "SqlRuleAction",
    "EmptyRuleAction", "d:string", "d:int", "d:dateTime", "d:boolean", "d:duration",
)  # fmt: skip
_NAMESPACES = {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE}


def sql_text(data: bytes) -> str:
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in data)


def atom_entry(data: bytes) -> bytes:
    steps = iter(data)
    name = _DESCRIPTIONS[next(steps, 0) % len(_DESCRIPTIONS)]
    content = element("content", element(name, _content(steps, 4), _NAMESPACES))
    return element("entry", content, {"xmlns": ATOM}).encode()


def _content(steps: Iterator[int], depth: int) -> str:
    """Some elements, each with a type, a text or others inside."""
    written = []
    for _ in range(next(steps, 0) % 8):
        name = _ELEMENTS[next(steps, 0) % len(_ELEMENTS)]
        kind = _TYPES[next(steps, 0) % len(_TYPES)]
        attributes = {"i:type": kind} if kind else {}
        choice = next(steps, 0)
        if depth and choice % 3 == 0:
            written.append(element(name, _content(steps, depth - 1), attributes))
        else:
            written.append(leaf(name, _TEXTS[choice % len(_TEXTS)], attributes))
    return "".join(written)
