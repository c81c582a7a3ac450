"""How commands are declared whose options others have too: those are written once.

A function goes in, and for some of its parameters what they are made of (`Shared`). Typer gets
it with the options in their place. Most commands talk to a namespace: `command` gives them
`remote` and `printer`, and, where it is told an entity's settings, `settings`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from twinbus.cli.failures import USAGE, CommandError, one_line_errors
from twinbus.cli.printer import Printer
from twinbus.cli.remote import ADMIN_VARIABLE, CA_VARIABLE, CONNECTION_VARIABLE, Remote
from twinbus.core.units import duration_from_iso

F = TypeVar("F", bound=Callable[..., None])


def named(text: str) -> str:
    """A name without the slashes around it, which brokers leave out.

    An empty one is refused: it would mean the namespace itself.
    """
    if not text.strip("/ "):
        raise typer.BadParameter("a name is needed, and this is none")
    return text.strip("/")


def named_within(text: str) -> str:
    """The name of a subscription or rule; with a slash it would be a path of another thing."""
    if "/" in text:
        raise typer.BadParameter(f"'{text}' cannot be a name: there is a '/' in it")
    return named(text)


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Entity = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        callback=named,
        help="A queue, a topic, or <topic>/Subscriptions/<name>; add /$DeadLetterQueue for its"
        " dead letters.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# The two namespaces of a pair.
Primary = Annotated[
    str, typer.Option(envvar="TWINBUS_PRIMARY", help="Connection string of the primary.")
]
Secondary = Annotated[
    str, typer.Option(envvar="TWINBUS_SECONDARY", help="Connection string of the secondary.")
]
BacklogQueues = Annotated[int, typer.Option(min=1, help="How many backlog queues.")]
PairCa = Annotated[
    Path | None,
    typer.Option(envvar=CA_VARIABLE, help="Certificate to trust, for brokers with their own."),
]

REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Shared:
    """Options with their annotations and defaults, and what is made of their values, in order."""

    options: dict[str, tuple[Any, Any]]
    make: Callable[..., Any]


_REMOTE = Shared(
    {
        "connection": (
            Annotated[
                str,
                typer.Option(
                    envvar=CONNECTION_VARIABLE,
                    help="The namespace's connection string.",
                    metavar="STRING",
                ),
            ],
            REQUIRED,
        ),
        "admin_endpoint": (
            Annotated[
                str | None,
                typer.Option(
                    envvar=ADMIN_VARIABLE,
                    help="Where administration is, if not on port 5300 of this machine's broker or"
                    " at Azure.",
                    metavar="HOST:PORT",
                ),
            ],
            None,
        ),
        "ca": (
            Annotated[
                Path | None,
                typer.Option(
                    envvar=CA_VARIABLE,
                    help="The authority to trust; for this machine's broker"
                    " twinbus-data/tls/ca.pem.",
                    metavar="FILE",
                ),
            ],
            None,
        ),
    },
    Remote,
)
_PRINTER = Shared({"json_output": (Json, False)}, Printer)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an entity, as an option."""

    name: str
    kind: type
    help: str
    is_duration: bool = False

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def annotation(self) -> Any:
        option = self.option
        if self.kind is bool:
            option += "/--no-" + self.name.replace("_", "-")
        return Annotated[self.kind | None, typer.Option(option, help=self.help, show_default=False)]


def command(
    app: typer.Typer, name: str, settings: tuple[Setting, ...] = (), **shared: Shared
) -> Callable[[F], F]:
    """Declare a command that talks to a namespace."""
    if settings:
        shared["settings"] = _chosen(settings)
    return declare(app, name, {**shared, "remote": _REMOTE, "printer": _PRINTER})


def declare(app: typer.Typer, name: str, shared: dict[str, Shared]) -> Callable[[F], F]:
    """Declare a command of `app`; `shared` is by the function's parameters."""

    def decorate(function: F) -> F:
        own = inspect.signature(function, eval_str=True).parameters
        given = {p.name: (p.annotation, p.default) for p in own.values() if p.name not in shared}
        for some in shared.values():
            given |= some.options

        def run(**values: Any) -> None:
            with one_line_errors():
                for parameter, some in shared.items():
                    made = some.make(*[values.pop(option) for option in some.options])
                    values[parameter] = made
                function(**values)

        run.__doc__ = function.__doc__
        run.__annotations__ = {key: annotation for key, (annotation, _) in given.items()}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
                for key, (annotation, default) in given.items()
            ]
        )
        app.command(name)(run)
        return function

    return decorate


def _chosen(settings: tuple[Setting, ...]) -> Shared:
    """The settings that were given; the others stay as they are."""

    def chosen(*values: Any) -> dict[str, Any]:
        given = [(s, v) for s, v in zip(settings, values, strict=True) if v is not None]
        for setting, value in given:
            # An empty text clears a setting.
            if setting.is_duration and value:
                duration_ms(setting.option, value)
        return {setting.name: value for setting, value in given}

    return Shared({setting.name: (setting.annotation, None) for setting in settings}, chosen)


def port(text: str, option: str, nought: str) -> int | None:
    """A port's number; None when it is switched off. What 0 means is said by `nought`."""
    if text.lower() == "off":
        return None
    if not text.isdecimal() or not text.isascii() or int(text) > 65535:
        raise typer.BadParameter(
            f"'{text}' is no port: use 1 to 65535, {nought}, or 'off'", param_hint=option
        )
    return int(text)


def duration_ms(option: str, text: str) -> int:
    """What an option says in ISO 8601."""
    try:
        return duration_from_iso(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}", USAGE) from error
