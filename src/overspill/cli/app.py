"""The command's frame: its verbs, and how an error reaches a person.

Heavy modules are imported inside the verbs, so that ``overspill --help`` answers at once.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Annotated

import typer

from overspill import __version__
from overspill.cli.build import build
from overspill.cli.clean import clean
from overspill.cli.demo.verb import demo
from overspill.cli.info import info
from overspill.cli.partition import partition
from overspill.cli.verify import verify
from overspill.cli.wording import told_at_the_prompt
from overspill.errors import OverspillError

_debugging = False


def _told_plainly(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb whose errors are messages; typer would end an interrupted one without a word."""

    @functools.wraps(verb)
    def run(*arguments: object, **options: object) -> None:
        try:
            verb(*arguments, **options)
        except OverspillError as error:
            if _debugging:
                raise
            typer.echo(f"overspill: {told_at_the_prompt(error)}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            told = "interrupted; the same command starts over"
            if verb is build:
                told += ", or goes on from its last finished step with --resume"
            typer.echo(f"overspill: {told}", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None

    return run


app = typer.Typer(
    name="overspill",
    help="PyTorch tensors and graphs bigger than the memory you may use.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it takes "[@KEY]" for a colour, and cuts words that are long
    pretty_exceptions_enable=False,
)
for _verb in (build, info, verify, partition, demo, clean):
    app.command()(_told_plainly(_verb))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"overspill {__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001 (its callback prints and ends)
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    global _debugging
    _debugging = debug


def main() -> None:
    """Run the command.

    Exit status: 0 well, 1 an error that a person can act on, 2 wrong usage, 130 interrupted.
    """
    app()
