"""What an admin URL's path points at (E1, E2)."""

import pytest

from twinbus.admin.targets import Kind, Target, parse_target


@pytest.mark.parametrize(
    ("path", "kind", "parts"),
    [
        ("/$namespaceinfo", Kind.NAMESPACE, ("", "", "")),
        ("/$Resources/Queues", Kind.QUEUES, ("", "", "")),
        ("/$resources/topics/", Kind.TOPICS, ("", "", "")),
        ("/orders", Kind.ENTITY, ("orders", "", "")),
        ("/orders/eu/north", Kind.ENTITY, ("orders/eu/north", "", "")),
        ("/orders/Subscriptions", Kind.SUBSCRIPTIONS, ("orders", "", "")),
        ("/orders/subscriptions/", Kind.SUBSCRIPTIONS, ("orders", "", "")),
        ("/a/b/Subscriptions/s", Kind.SUBSCRIPTION, ("a/b", "s", "")),
        ("/a/Subscription/s", Kind.SUBSCRIPTION, ("a", "s", "")),
        ("/subscriptions/subscriptions/s", Kind.SUBSCRIPTION, ("subscriptions", "s", "")),
        ("/a/Subscriptions/s/Rules/", Kind.RULES, ("a", "s", "")),
        ("/a/SUBSCRIPTIONS/s/rules/$Default", Kind.RULE, ("a", "s", "$Default")),
        ("/a/Subscriptions/s/more", Kind.ENTITY, ("a/Subscriptions/s/more", "", "")),
        ("/", Kind.ENTITY, ("", "", "")),
    ],
)
def test_E2_a_path_points_at(path: str, kind: Kind, parts: tuple[str, str, str]) -> None:
    assert parse_target(path) == Target(kind, path.strip("/"), *parts)
