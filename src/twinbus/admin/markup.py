"""XML in and out, safely: bytes become a tree, elements become text.

Parsing refuses document types and entities, so that a small body cannot grow; the caller
bounds the bytes. Writing puts no whitespace between elements, because clients keep it.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from twinbus.core.errors import ARGUMENT_ERROR, BusError

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

_NONE: Mapping[str, str] = MappingProxyType({})
# What XML 1.0 cannot hold, even as a character reference.
_IMPOSSIBLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = str.maketrans(
    # A parser would turn a bare carriage return into a line feed.
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
)
_ATTRIBUTE_ESCAPES = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;"}


def parse(body: bytes) -> Element:
    """Read a document; BusError says why it cannot be read."""
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except ParseError as error:
        raise BusError(ARGUMENT_ERROR, f"The body is not well-formed XML: {error}.") from error
    except DefusedXmlException as error:
        raise BusError(
            ARGUMENT_ERROR, "The body has a document type or entities, which are not allowed."
        ) from error
    except (LookupError, ValueError) as error:
        raise BusError(
            ARGUMENT_ERROR, "The body's encoding is not known; send the XML as UTF-8."
        ) from error
    return root


def child(parent: Element, name: str) -> Element | None:
    """Find a child in the Service Bus namespace; one marked as nil counts as absent."""
    found = parent.find(f"{{{SERVICE_BUS}}}{name}")
    if found is None or found.get(f"{{{INSTANCE}}}nil") in ("true", "1"):
        return None
    return found


def children(parent: Element, name: str) -> list[Element]:
    return parent.findall(f"{{{SERVICE_BUS}}}{name}")


def type_of(element: Element) -> str:
    """Give the local part of the element's `i:type`, or nothing."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def element(name: str, content: str, attributes: Mapping[str, str] = _NONE) -> str:
    """Write an element around content that is XML already."""
    head = "".join(f' {key}="{_escape_attribute(text)}"' for key, text in attributes.items())
    return f"<{name}{head}>{content}</{name}>" if content else f"<{name}{head}/>"


def leaf(name: str, text: str, attributes: Mapping[str, str] = _NONE) -> str:
    """Write an element around plain text."""
    return element(name, escape(text), attributes)


def escape(text: str) -> str:
    return _IMPOSSIBLE.sub("\ufffd", text).translate(_ESCAPES)


def _escape_attribute(text: str) -> str:
    text = escape(text)
    for character, reference in _ATTRIBUTE_ESCAPES.items():
        text = text.replace(character, reference)
    return text
