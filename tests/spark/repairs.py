"""Transformations as users write them, for the tests of resubmission."""

import json
import time
from typing import Any


def mend(message: dict[str, Any]) -> dict[str, Any] | bool | None:
    """Even numbers are mended, multiples of five are given up, the others are good as they are."""
    number = json.loads(message["body"])["number"]
    if number % 5 == 0:
        return None
    if number % 2 == 0:
        body = json.dumps({"number": number, "mended": True}).encode()
        return {"body": body, "subject": "mended"}
    return True


def mistype(message: dict[str, Any]) -> dict[str, Any]:
    """A number is a text in a property; of one message it was forgotten."""
    number = json.loads(message["body"])["number"]
    return {"application_properties": {"number": number if number == 1 else str(number)}}


def slowly(message: dict[str, Any]) -> bool:
    """The second half takes its time, so that a test can interrupt in between."""
    if int(message["message_id"].removeprefix("m-")) >= 500:
        time.sleep(0.05)
    return True
