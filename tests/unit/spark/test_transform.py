"""What a Python function makes of a batch of dead letters (L4), with no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.spark import schema
from twinbus.spark.bulk import transform


def letters(count: int) -> list[dict[str, Any]]:
    """As Arrow gives them: a map is a list of pairs."""
    empty = dict.fromkeys(schema.NAMES)
    return [
        empty
        | {"sequence_number": number, "message_id": f"m-{number}", "body": b"x", "wanted": True}
        | {"application_properties": [("number", str(number))]}
        for number in range(count)
    ]


def changed(count: int, function: transform.Function) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = transform._batch(letters(count), function).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("subject", 7, "string"),
        ("subject", "\ud800", "string"),
        ("body", ["x"], "binary"),
        ("time_to_live_ms", "soon", "bigint"),
        ("time_to_live_ms", 2**63, "bigint"),
        ("scheduled_ts", "2026-03-01", "timestamp"),
        ("application_properties", {"number": 7}, "map<string,string>"),
        ("application_properties", {None: "x"}, "map<string,string>"),
        ("application_properties", "x", "map<string,string>"),
    ],
)
def test_l4_a_change_of_the_wrong_type_is_the_fault_of_one_message(
    name: str, value: object, kind: str
) -> None:
    def mend(message: dict[str, Any]) -> dict[str, Any]:
        return {"subject": "mended"} | ({name: value} if message["message_id"] == "m-1" else {})

    rows = changed(3, mend)
    assert [(row["wanted"], row["subject"]) for row in rows] == [
        (True, "mended"), (False, None), (True, "mended"),
    ]  # fmt: skip
    assert [row["fault"] is None for row in rows] == [True, False, True]
    assert rows[1]["fault"].startswith(f"the new {name} is no {kind}: ")
    # It stays what it is: nothing of the change is in it.
    assert (rows[1]["body"], rows[1]["application_properties"]) == (b"x", [("number", "1")])


@pytest.mark.parametrize("given_up", [None, False, {"body": None, "subject": 7}])
def test_l4_what_is_given_up_has_no_fault(given_up: object) -> None:
    def mend(message: dict[str, Any]) -> object:
        message["application_properties"]["number"] = 7
        return given_up

    assert [
        (row["wanted"], row["fault"], row["application_properties"]) for row in changed(2, mend)
    ] == [(False, None, [("number", str(number))]) for number in range(2)]
