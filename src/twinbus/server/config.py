"""What the user configures: a TOML file of ours, or the official emulator's Config.json.

Both name namespaces and the entities to make in them at start. An entity that exists
already is left as it is: configuration never throws messages away.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from twinbus.core import limits
from twinbus.core.descriptions import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.core.units import duration_from_iso

DEFAULT_NAMESPACE = "twinbus"
MEMORY_BYTES_MAX = 256 * 1024 * 1024

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)


class ConfigError(ValueError):
    """A configuration that cannot be used: what is wrong, and where."""


@dataclass(slots=True)
class NamespaceConfig:
    name: str
    #: Host names besides `<name>` and `<name>.<anything>`.
    hosts: list[str] = field(default_factory=list)
    #: Authorization rules of the namespace, besides the root's.
    policies: list[AuthorizationRule] = field(default_factory=list)
    queues: list[QueueDescription] = field(default_factory=list)
    topics: list[TopicDescription] = field(default_factory=list)
    #: With its rules; none means `$Default`.
    subscriptions: list[tuple[SubscriptionDescription, list[RuleDescription]]] = field(
        default_factory=list
    )


@dataclass(slots=True)
class CaptureConfig:
    #: Where the journal is kept as Parquet.
    directory: Path
    #: How much time a file holds at most, and what becomes of old ones; None: the default.
    roll_seconds: float | None = None
    keep_days: int | None = None
    keep_gigabytes: float | None = None


@dataclass(slots=True)
class Config:
    namespaces: list[NamespaceConfig] = field(
        default_factory=lambda: [NamespaceConfig(DEFAULT_NAMESPACE)]
    )
    #: Message bodies kept in memory; beyond it they are read back from the journal.
    memory_bytes_max: int = MEMORY_BYTES_MAX
    #: Clients that may be connected, and connections that have shown no key yet.
    max_connections: int = limits.CONNECTIONS_MAX
    max_unauthenticated: int = limits.STRANGERS_MAX
    certificate: Path | None = None
    key: Path | None = None
    capture: CaptureConfig | None = None


def load(path: Path) -> Config:
    """Read a configuration file; its form is told by its name."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if path.suffix.lower() == ".json":
            return _from_emulator(json.loads(text))
        return _from_toml(tomllib.loads(text))
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not well-formed: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


# --- our own form ---------------------------------------------------------------------


def _from_toml(given: Mapping[str, Any]) -> Config:
    config = Config()
    counts = ("max_connections", "max_unauthenticated")
    known = {"memory_megabytes", "certificate", "key", "capture", "namespaces", *counts}
    _refuse_unknown(given, known, "file")
    for name in counts:
        if name in given:
            setattr(config, name, _count(name, given[name]))
    if "memory_megabytes" in given:
        config.memory_bytes_max = int(given["memory_megabytes"]) * 1024 * 1024
    if "certificate" in given or "key" in given:
        if not ("certificate" in given and "key" in given):
            raise ConfigError("'certificate' and 'key' go together: give both or none")
        config.certificate = Path(given["certificate"])
        config.key = Path(given["key"])
    if "capture" in given:
        config.capture = _capture(given["capture"])
    if "namespaces" in given:
        config.namespaces = [
            _namespace_from_toml(name, value) for name, value in given["namespaces"].items()
        ]
    return config


def _count(name: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(f"{name} is a whole number of at least 1, not {given!r}")
    return given


def _capture(given: object) -> CaptureConfig:
    if not isinstance(given, Mapping) or "directory" not in given:
        raise ConfigError("[capture] needs a 'directory'")
    _refuse_unknown(given, {f.name for f in fields(CaptureConfig)}, "capture")
    config = CaptureConfig(Path(given["directory"]))
    for name, least in (("roll_seconds", 0.1), ("keep_days", 1), ("keep_gigabytes", 0)):
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise ConfigError(f"capture.{name} is a number of at least {least}, not {value!r}")
        setattr(config, name, int(value) if name == "keep_days" else value)
    return config


def _namespace_from_toml(name: str, given: Mapping[str, Any]) -> NamespaceConfig:
    _refuse_unknown(given, {"hosts", "policies", "queues", "topics"}, f"namespaces.{name}")
    namespace = NamespaceConfig(name, hosts=list(given.get("hosts", [])))
    for policy, settings in given.get("policies", {}).items():
        namespace.policies.append(_policy(policy, settings))
    for queue, settings in given.get("queues", {}).items():
        namespace.queues.append(_settings(QueueDescription(queue), settings, _snake, queue))
    for topic, settings in given.get("topics", {}).items():
        rest = {key: value for key, value in settings.items() if key != "subscriptions"}
        namespace.topics.append(_settings(TopicDescription(topic), rest, _snake, topic))
        for subscription, own in settings.get("subscriptions", {}).items():
            rules = [
                _settings(RuleDescription(rule), values, _snake, rule)
                for rule, values in own.get("rules", {}).items()
            ]
            rest = {key: value for key, value in own.items() if key != "rules"}
            made = _settings(
                SubscriptionDescription(topic, subscription), rest, _snake, subscription
            )
            namespace.subscriptions.append((made, rules))
    return namespace


def _policy(name: str, given: Mapping[str, Any]) -> AuthorizationRule:
    _refuse_unknown(given, {"rights", "primary_key", "secondary_key"}, f"policies.{name}")
    if not given.get("primary_key"):
        raise ConfigError(f"the policy '{name}' needs a primary_key")
    policy = AuthorizationRule(
        name,
        list(given.get("rights", [])),
        str(given["primary_key"]),
        str(given.get("secondary_key", "")),
    )
    try:
        policy.check()
    except BusError as error:
        raise ConfigError(error.text) from error
    return policy


# --- the emulator's form --------------------------------------------------------------


def _from_emulator(given: Mapping[str, Any]) -> Config:
    try:
        listed = given["UserConfig"]["Namespaces"]
    except (KeyError, TypeError) as error:
        raise ConfigError("there is no UserConfig.Namespaces in it") from error
    return Config(namespaces=[_namespace_from_emulator(namespace) for namespace in listed])


def _namespace_from_emulator(given: Mapping[str, Any]) -> NamespaceConfig:
    namespace = NamespaceConfig(given["Name"])
    for queue in given.get("Queues") or []:
        namespace.queues.append(
            _settings(
                QueueDescription(queue["Name"]),
                queue.get("Properties") or {},
                _camel,
                queue["Name"],
            )
        )
    for topic in given.get("Topics") or []:
        name = topic["Name"]
        namespace.topics.append(
            _settings(TopicDescription(name), topic.get("Properties") or {}, _camel, name)
        )
        for subscription in topic.get("Subscriptions") or []:
            made = _settings(
                SubscriptionDescription(name, subscription["Name"]),
                subscription.get("Properties") or {},
                _camel,
                subscription["Name"],
            )
            rules = [_rule_from_emulator(rule) for rule in subscription.get("Rules") or []]
            namespace.subscriptions.append((made, rules))
    return namespace


def _rule_from_emulator(given: Mapping[str, Any]) -> RuleDescription:
    rule = RuleDescription(given["Name"])
    properties = given.get("Properties") or {}
    correlation = properties.get("CorrelationFilter")
    if properties.get("FilterType") == "Correlation" or correlation:
        rule.filter = "correlation"
        for key, value in (correlation or {}).items():
            if key == "Properties":
                rule.properties = {str(k): ("string", str(v)) for k, v in value.items()}
            else:
                rule.correlation[_CORRELATION_NAMES.get(_camel(key), _camel(key))] = str(value)
    elif properties.get("SqlFilter"):
        rule.filter = "sql"
        rule.expression = properties["SqlFilter"]["SqlExpression"]
    if properties.get("Action"):
        rule.action = properties["Action"]["SqlExpression"]
    return rule


_CORRELATION_NAMES = {"subject": "label"}

# --- settings -------------------------------------------------------------------------


def _snake(name: str) -> str:
    return name


def _camel(name: str) -> str:
    """LockDuration → lock_duration."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _settings(made: D, given: Mapping[str, Any], spelling: Callable[[str], str], where: str) -> D:
    """Set a description's fields; durations may be texts such as PT30S."""
    known = {f.name: f for f in fields(made)}
    for key, value in given.items():
        name = spelling(key)
        if f"{name}_ms" in known:
            name = f"{name}_ms"
            try:
                value = duration_from_iso(value) if isinstance(value, str) else int(value * 1000)
            except ValueError as error:
                raise ConfigError(f"{key} of '{where}': {error}") from error
        if name not in known or name in ("name", "topic", "created_ms", "updated_ms"):
            raise ConfigError(
                f"'{key}' is no setting of '{where}'; known are {', '.join(sorted(known))}"
            )
        if value == "" and name in ("forward_to", "forward_dead_lettered_messages_to"):
            value = None
        setattr(made, name, value)
    return made


def _refuse_unknown(given: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = set(given) - known
    if unknown:
        raise ConfigError(
            f"unknown in {where}: {', '.join(sorted(unknown))};"
            f" known are {', '.join(sorted(known))}"
        )
