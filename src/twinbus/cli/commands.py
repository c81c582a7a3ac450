"""How a command that talks to a namespace is declared: once, with what all of them share.

A function with the parameters `remote` and `printer` goes in. Typer gets it with
`--connection`, `--admin-endpoint`, `--ca` and `--json` in their place, and, where the function
has a parameter `settings`, with one option for each of the entity's settings.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from twinbus.cli.failures import one_line_errors
from twinbus.cli.printer import Printer
from twinbus.cli.remote import ADMIN_VARIABLE, CA_VARIABLE, CONNECTION_VARIABLE, Remote

F = TypeVar("F", bound=Callable[..., None])

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Entity = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="A queue, a topic, or <topic>/Subscriptions/<name>; add /$DeadLetterQueue for its"
        " dead letters.",
    ),
]

_SHARED: dict[str, Any] = {
    "connection": Annotated[
        str,
        typer.Option(
            envvar=CONNECTION_VARIABLE, help="The namespace's connection string.", metavar="STRING"
        ),
    ],
    "admin_endpoint": Annotated[
        str | None,
        typer.Option(
            envvar=ADMIN_VARIABLE,
            help="Where administration is, if not on port 5300 of this machine's broker or at"
            " Azure.",
            metavar="HOST:PORT",
        ),
    ],
    "ca": Annotated[
        Path | None,
        typer.Option(
            envvar=CA_VARIABLE,
            help="The authority to trust; for this machine's broker twinbus-data/tls/ca.pem.",
            metavar="FILE",
        ),
    ],
    "json_output": Annotated[bool, typer.Option("--json", help="Print JSON.")],
}
_DEFAULTS: dict[str, Any] = {
    "connection": inspect.Parameter.empty,
    "admin_endpoint": None,
    "ca": None,
    "json_output": False,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an entity, as an option."""

    name: str
    kind: type
    help: str

    @property
    def annotation(self) -> Any:
        option = "--" + self.name.replace("_", "-")
        if self.kind is bool:
            option += "/--no-" + self.name.replace("_", "-")
        return Annotated[self.kind | None, typer.Option(option, help=self.help, show_default=False)]


def command(app: typer.Typer, name: str, settings: tuple[Setting, ...] = ()) -> Callable[[F], F]:
    """Declare a command of `app`; see the module's beginning."""

    def declare(function: F) -> F:
        own = inspect.signature(function, eval_str=True).parameters
        given = {p.name: (p.annotation, p.default) for p in own.values() if p.name not in _GIVEN}
        given |= {setting.name: (setting.annotation, None) for setting in settings}
        given |= {shared: (kind, _DEFAULTS[shared]) for shared, kind in _SHARED.items()}

        def run(**values: Any) -> None:
            remote = Remote(*(values.pop(key) for key in ("connection", "admin_endpoint", "ca")))
            printer = Printer(values.pop("json_output"))
            if "settings" in own:
                chosen = {s.name: values.pop(s.name) for s in settings}
                values["settings"] = {k: v for k, v in chosen.items() if v is not None}
            with one_line_errors():
                function(remote, printer, **values)

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

    return declare


_GIVEN = ("remote", "printer", "settings")
