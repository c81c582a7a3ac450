"""What the user configures: a TOML file of ours, or the official emulator's Config.json.

Both name namespaces and the entities to make in them at start. An entity that exists
already is left as it is: configuration never throws messages away.

Every value is checked here, where it is known which line of the file it came from: what leaves
is of the types that it says, and whatever is wrong is a ConfigError that names the place.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from twinbus.core import limits, names
from twinbus.core.descriptions import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.core.units import SECOND_MS, UNLIMITED_MS, duration_from_iso
from twinbus.engine.rules import Rule
from twinbus.server.authorization import ROOT_POLICY
from twinbus.server.rules import CORRELATION_FIELDS

DEFAULT_NAMESPACE = "twinbus"
MEMORY_BYTES_MAX = 256 * 1024 * 1024
_MEGABYTE = 1024 * 1024
_COUNT_MAX = 2**31 - 1
#: What a number of `[capture]` is at least and at most; a calendar has no more days.
_CAPTURE_NUMBERS = {
    "roll_seconds": (0.1, 1e9),
    "keep_days": (1, 36_500),
    "keep_gigabytes": (0, 1e9),
}

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
    is_emulators = path.suffix.lower() == ".json"
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if is_emulators else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not well-formed: {error}") from error
    try:
        config = _from_emulator(given) if is_emulators else _from_toml(given)
        _refuse_twins(config.namespaces)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


# --- our own form ---------------------------------------------------------------------


def _from_toml(given: Mapping[str, Any]) -> Config:
    config = Config()
    counts = ("max_connections", "max_unauthenticated")
    known = {"memory_megabytes", "certificate", "key", "capture", "namespaces", *counts}
    _refuse_unknown(given, known, "file")
    for name in counts:
        if name in given:
            setattr(config, name, _count(given[name], name))
    if "memory_megabytes" in given:
        config.memory_bytes_max = _count(given["memory_megabytes"], "memory_megabytes") * _MEGABYTE
    if "certificate" in given or "key" in given:
        if not ("certificate" in given and "key" in given):
            raise ConfigError("'certificate' and 'key' go together: give both or none")
        config.certificate = _path(given["certificate"], "certificate")
        config.key = _path(given["key"], "key")
    if "capture" in given:
        config.capture = _capture(given["capture"])
    if "namespaces" in given:
        listed = _table(given["namespaces"], "namespaces", "[namespaces.NAME]")
        config.namespaces = [_namespace_from_toml(name, value) for name, value in listed.items()]
        _need_one(config.namespaces)
    return config


def _capture(given: object) -> CaptureConfig:
    if not isinstance(given, Mapping) or "directory" not in given:
        raise ConfigError("[capture] needs a 'directory'")
    _refuse_unknown(given, {f.name for f in fields(CaptureConfig)}, "capture")
    config = CaptureConfig(_path(given["directory"], "capture.directory"))
    for name, (least, most) in _CAPTURE_NUMBERS.items():
        if name in given:
            value = _number(given[name], f"capture.{name}", least, most)
            setattr(config, name, int(value) if name == "keep_days" else value)
    return config


def _namespace_from_toml(name: str, given: object) -> NamespaceConfig:
    where = f"namespaces.{name}"
    tables = _table(given, where, f"[{where}]")
    _refuse_unknown(tables, {"hosts", "policies", "queues", "topics"}, where)
    namespace = NamespaceConfig(_host(name, where))
    namespace.hosts = [
        _whole_host(host, f"{where}.hosts")
        for host in _list(tables.get("hosts", []), f"{where}.hosts")
    ]
    for policy, settings, place in _named_tables(tables, "policies", where):
        namespace.policies.append(_policy(policy, settings, place))
    for queue, settings, place in _named_tables(tables, "queues", where):
        namespace.queues.append(_settings(QueueDescription(queue), settings, _snake, place))
    for topic, settings, place in _named_tables(tables, "topics", where):
        rest = {key: value for key, value in settings.items() if key != "subscriptions"}
        namespace.topics.append(_settings(TopicDescription(topic), rest, _snake, place))
        for subscription, own, below in _named_tables(settings, "subscriptions", place):
            rules = [
                _settings(RuleDescription(rule), values, _snake, rule_place)
                for rule, values, rule_place in _named_tables(own, "rules", below)
            ]
            rest = {key: value for key, value in own.items() if key != "rules"}
            made = _settings(SubscriptionDescription(topic, subscription), rest, _snake, below)
            namespace.subscriptions.append((made, rules))
    return namespace


def _named_tables(
    given: Mapping[str, Any], kind: str, where: str
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Name, table and place of each thing of a kind, such as the queues of a namespace."""
    place = f"{where}.{kind}"
    for name, inside in _table(given.get(kind, {}), place, f"[{place}.NAME]").items():
        yield name, _table(inside, f"{place}.{name}", f"[{place}.{name}]"), f"{place}.{name}"


def _policy(name: str, given: Mapping[str, Any], where: str) -> AuthorizationRule:
    _refuse_unknown(given, {"rights", "primary_key", "secondary_key"}, where)
    if not given.get("primary_key"):
        raise ConfigError(f"the policy '{name}' needs a primary_key")
    keys = [given["primary_key"], given.get("secondary_key", "")]
    if not all(isinstance(key, str) and _is_storable(key) for key in keys):
        # A key is not shown, not even a wrong one.
        raise ConfigError(f"the keys of {where} must be texts: write them in quotes")
    rights = [
        _text(right, f"{where}.rights")
        for right in _list(given.get("rights", []), f"{where}.rights")
    ]
    policy = AuthorizationRule(name, rights, *keys)
    try:
        policy.check()
    except BusError as error:
        raise ConfigError(f"{where}: {error.text}") from error
    return policy


# --- the emulator's form --------------------------------------------------------------


def _from_emulator(given: object) -> Config:
    try:
        listed = given["UserConfig"]["Namespaces"]  # type: ignore[index]
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigError("there is no UserConfig.Namespaces in it") from error
    where = "UserConfig.Namespaces"
    namespaces = [
        _namespace_from_emulator(_table(one, f"{where}[{number}]"), f"{where}[{number}]")
        for number, one in enumerate(_list(listed, where))
    ]
    _need_one(namespaces)
    return Config(namespaces=namespaces)


def _namespace_from_emulator(given: Mapping[str, Any], where: str) -> NamespaceConfig:
    namespace = NamespaceConfig(_host(_name(given, where), f"{where}.Name"))
    for queue, place in _members(given, "Queues", where):
        made = QueueDescription(_name(queue, place))
        namespace.queues.append(_settings(made, *_properties(queue, place)))
    for topic, place in _members(given, "Topics", where):
        name = _name(topic, place)
        namespace.topics.append(_settings(TopicDescription(name), *_properties(topic, place)))
        for subscription, below in _members(topic, "Subscriptions", place):
            own = SubscriptionDescription(name, _name(subscription, below))
            rules = [
                _rule_from_emulator(rule, rule_place)
                for rule, rule_place in _members(subscription, "Rules", below)
            ]
            namespace.subscriptions.append(
                (_settings(own, *_properties(subscription, below)), rules)
            )
    return namespace


def _name(given: Mapping[str, Any], where: str) -> str:
    if not given.get("Name"):
        raise ConfigError(f"{where} needs a Name")
    return _text(given["Name"], f"{where}.Name")


def _members(
    given: Mapping[str, Any], kind: str, where: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each object of a list with its place; a list may be missing or null."""
    for number, one in enumerate(_list(given.get(kind) or [], f"{where}.{kind}")):
        place = f"{where}.{kind}[{number}]"
        yield _table(one, place), place


def _properties(
    given: Mapping[str, Any], where: str
) -> tuple[Mapping[str, Any], Callable[[str], str], str]:
    """What `_settings` is told of an entity: its settings, their spelling, their place."""
    place = f"{where}.Properties"
    return _table(given.get("Properties") or {}, place), _camel, place


def _rule_from_emulator(given: Mapping[str, Any], where: str) -> RuleDescription:
    rule = RuleDescription(_name(given, where))
    properties, _, place = _properties(given, where)
    correlation = properties.get("CorrelationFilter")
    if properties.get("FilterType") == "Correlation" or correlation:
        rule.filter = "correlation"
        _correlate(rule, correlation or {}, f"{place}.CorrelationFilter")
    elif properties.get("SqlFilter"):
        rule.filter = "sql"
        rule.expression = _expression(properties, "SqlFilter", place)
    if properties.get("Action"):
        rule.action = _expression(properties, "Action", place)
    return _checked(rule, where)


def _correlate(rule: RuleDescription, given: object, where: str) -> None:
    for key, value in _table(given, where).items():
        place = f"{where}.{key}"
        if key == "Properties":
            own = _table(value or {}, place)
            rule.properties = {k: ("string", _as_text(v, f"{place}.{k}")) for k, v in own.items()}
            continue
        name = _CORRELATION_NAMES.get(_camel(key), _camel(key))
        if name not in CORRELATION_FIELDS:
            raise ConfigError(f"'{key}' is no property that {where} can compare")
        rule.correlation[name] = _as_text(value, place)


def _expression(given: Mapping[str, Any], kind: str, where: str) -> str:
    inside = _table(given[kind], f"{where}.{kind}")
    if "SqlExpression" not in inside:
        raise ConfigError(f"{where}.{kind} needs a SqlExpression")
    return _text(inside["SqlExpression"], f"{where}.{kind}.SqlExpression")


_CORRELATION_NAMES = {"subject": "label"}

# --- settings -------------------------------------------------------------------------

# What an entity has and a configuration does not say.
_NOT_SETTINGS = ("name", "topic", "created_ms", "updated_ms", "authorization_rules")


def _snake(name: str) -> str:
    return name


def _camel(name: str) -> str:
    """LockDuration → lock_duration."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _settings(made: D, given: Mapping[str, Any], spelling: Callable[[str], str], where: str) -> D:
    """Set a description's fields; durations may be texts such as PT30S."""
    known = {f.name.removesuffix("_ms"): f for f in fields(made) if f.name not in _NOT_SETTINGS}
    for key, value in given.items():
        name = spelling(key)
        if name == "authorization_rules":
            raise ConfigError(
                f"{where}.{key} cannot be set here: give an entity its rules through the"
                " administration API, or a namespace policies"
            )
        if name not in known:
            raise ConfigError(
                f"'{key}' is no setting of {where}; known are {', '.join(sorted(known))}"
            )
        if value == "" and name in ("forward_to", "forward_dead_lettered_messages_to"):
            value = None
        setattr(made, known[name].name, _value(known[name], value, f"{where}.{key}"))
    return _checked(made, where)


def _value(setting: Field[Any], given: object, where: str) -> object:
    """A value as the description's field has it."""
    if setting.name.endswith("_ms"):
        return _duration_ms(given, where)
    if setting.type is bool:
        if not isinstance(given, bool):
            raise ConfigError(f"{where} must be true or false, not {_shown(given)}")
        return given
    if setting.type is int:
        return _whole(given, where)
    if setting.name == "correlation":
        return _correlation(given, where)
    if setting.type in (str, str | None):
        return None if given is None and setting.type is not str else _text(given, where)
    return _typed_values(given, where)


def _correlation(given: object, where: str) -> dict[str, str]:
    _refuse_unknown(_table(given, where), set(CORRELATION_FIELDS), where)
    return {key: _text(value, f"{where}.{key}") for key, value in _table(given, where).items()}


def _typed_values(given: object, where: str) -> dict[str, tuple[str, str]]:
    """Values with the names of their types: `amount = ["int", "5"]`."""
    made = {}
    for key, pair in _table(given, where).items():
        if not (isinstance(pair, list) and len(pair) == 2):
            raise ConfigError(
                f"{where}.{key} must be a type and a text: write"
                f' {key} = ["string", "red"] or {key} = ["int", "5"]'
            )
        made[key] = (_text(pair[0], f"{where}.{key}"), _text(pair[1], f"{where}.{key}"))
    return made


def _checked(made: D, where: str) -> D:
    """The description, if the broker will take it."""
    try:
        if isinstance(made, RuleDescription):
            Rule(made)
            return made
        if isinstance(made, SubscriptionDescription):
            names.check_subscription_name(made.name)
        else:
            names.check_entity_name(made.name)
        made.check()
    except BusError as error:
        raise ConfigError(f"{where}: {error.text}") from error
    return made


# --- values ---------------------------------------------------------------------------


def _table(given: object, where: str, written: str = "") -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        advice = f": write {written}" if written else ""
        raise ConfigError(
            f"{where} must be a table of names and values, not {_kind(given)}{advice}"
        )
    for key in given:
        if not _is_storable(key):
            raise ConfigError(f"{key!r} in {where} cannot be a name: it is not valid Unicode")
    return given


def _list(given: object, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise ConfigError(f"{where} must be a list, not {_kind(given)}: write it in [ ]")
    return given


def _text(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where} must be a text, not {_shown(given)}: write it in quotes")
    if not _is_storable(given):
        raise ConfigError(f"{where} is not valid Unicode, or has a zero byte in it")
    return given


def _as_text(given: object, where: str) -> str:
    """A text, or the text of a single value."""
    return _text(str(given) if isinstance(given, bool | int | float) else given, where)


def _is_storable(text: str) -> bool:
    """JSON may hold half a character, which can be written nowhere; no path has a zero byte."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _host(given: object, where: str) -> str:
    """A host's name, or a part of one: it goes into a certificate."""
    name = _text(given, where)
    if not re.fullmatch(r"[!-~]+", name):
        raise ConfigError(
            f"{where} is no name of a host: {_shown(name)}; use letters, digits, '.' and '-'"
        )
    return name


def _whole_host(given: object, where: str) -> str:
    """The name or address that clients use; whatever port they say is not compared."""
    name = _host(given, where).removeprefix("[").removesuffix("]")
    if ":" in name or "/" in name:
        try:
            ip_address(name)
        except ValueError:
            raise ConfigError(
                f"{where} is a name or an address alone, without a port: {_shown(name)}"
            ) from None
    return name


def _path(given: object, where: str) -> Path:
    if not _text(given, where):
        raise ConfigError(f"{where} is empty: give a path")
    return Path(_text(given, where))


def _whole(given: object, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"{where} must be a whole number, not {_shown(given)}")
    return given


def _count(given: object, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _COUNT_MAX:
        raise ConfigError(f"{where} is a whole number from 1 to {_COUNT_MAX}, not {_shown(given)}")
    return given


def _number(given: object, where: str, least: float, most: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise ConfigError(f"{where} is a number from {least:g} to {most:g}, not {_shown(given)}")
    return given


def _duration_ms(given: object, where: str) -> int:
    if isinstance(given, str):
        try:
            return duration_from_iso(given)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise ConfigError(
            f'{where} must be a duration such as "PT30S", or seconds, not {_shown(given)}'
        )
    # Whatever is longer than can be told is for ever, as it is for a text.
    return int(max(-1.0, min(given, UNLIMITED_MS / SECOND_MS)) * SECOND_MS)


_SHOWN_MAX = 60


def _shown(given: object) -> str:
    """A value in a message; only a part of a long one, and nothing of what has others in it."""
    if isinstance(given, Mapping | list) or given is None:
        return _kind(given)
    if isinstance(given, int) and given.bit_length() > _SHOWN_MAX:
        # Python refuses to write one of thousands of digits.
        return "a number of many digits"
    shown = repr(given) if not isinstance(given, bool) else str(given).lower()
    return shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "…"


def _kind(given: object) -> str:
    """What a value is without showing it: there may be keys in it."""
    if given is None:
        return "nothing"
    if isinstance(given, Mapping):
        return "a table"
    if isinstance(given, list):
        return "a list"
    return "a text" if isinstance(given, str) else "a single value"


def _need_one(namespaces: list[NamespaceConfig]) -> None:
    if not namespaces:
        raise ConfigError("there is no namespace in it: name one, or leave all of them out")


def _refuse_twins(namespaces: list[NamespaceConfig]) -> None:
    """Refuse names that differ in case only, or not at all: one of the two would not be made."""
    _refuse_alike([namespace.name for namespace in namespaces], "the namespaces")
    hosts = [sorted({names.fold(host) for host in namespace.hosts}) for namespace in namespaces]
    _refuse_alike([host for own in hosts for host in own], "the hosts of all namespaces")
    for namespace in namespaces:
        where = f"namespace '{namespace.name}'"
        policies = [policy.name for policy in namespace.policies]
        if names.fold(ROOT_POLICY) in map(names.fold, policies):
            raise ConfigError(
                f"{where} has {ROOT_POLICY} already, with the broker's own key: give the policy"
                " another name"
            )
        _refuse_alike(policies, f"the policies of {where}")
        entities = [queue.name for queue in namespace.queues]
        entities += [topic.name for topic in namespace.topics]
        _refuse_alike(entities, f"the queues and topics of {where}")
        paths = [f"{made.topic}/{made.name}" for made, _ in namespace.subscriptions]
        _refuse_alike(paths, f"the subscriptions of {where}")
        for made, rules in namespace.subscriptions:
            _refuse_alike([rule.name for rule in rules], f"the rules of '{made.topic}/{made.name}'")


def _refuse_alike(given: list[str], where: str) -> None:
    seen: dict[str, str] = {}
    for name in given:
        other = seen.get(names.fold(name))
        if other is not None:
            raise ConfigError(
                f"'{other}' and '{name}' are one name among {where}: case does not count"
            )
        seen[names.fold(name)] = name


def _refuse_unknown(given: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = set(given) - known
    if unknown:
        raise ConfigError(
            f"unknown in {where}: {', '.join(sorted(unknown))};"
            f" known are {', '.join(sorted(known))}"
        )
