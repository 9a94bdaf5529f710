"""The command's frame: its verbs, and how an error reaches a person.

Heavy modules are imported inside the verbs, so that ``overspill --help`` answers at once.
"""

from __future__ import annotations

import functools
import inspect
import logging
import signal
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from overspill import __version__
from overspill.cli.bench.verb import bench
from overspill.cli.build import build
from overspill.cli.clean import clean
from overspill.cli.cluster.verb import VERBS as CLUSTER_VERBS
from overspill.cli.cluster.verb import cluster
from overspill.cli.demo.verb import demo
from overspill.cli.doctor.verb import doctor
from overspill.cli.help_text import CLOSED_PIPE, Verb, Verbs
from overspill.cli.info import info
from overspill.cli.lines import harmless_lines, say
from overspill.cli.partition import partition
from overspill.cli.status import status
from overspill.cli.streams import forget_reader, prepare_streams
from overspill.cli.verify import verify
from overspill.cli.wording import at_the_prompt, told_at_the_prompt
from overspill.errors import OverspillError

_STATUSES = (
    "Exit status: 0 well; 1 an error, or a finding, that a person can act on; 2 wrong usage; "
    "130 interrupted; 141 nobody reads the output any more. Results go to standard output, "
    "progress and errors to standard error."
)
_INTERRUPTED = 128 + signal.SIGINT
_debugging = False
_DEBUG = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _told_plainly(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb whose errors are messages, and that takes --debug after its name too."""

    @functools.wraps(verb)
    def run(*arguments: Any, debug: bool = False, **options: Any) -> None:
        try:
            _run(functools.partial(verb, *arguments, **options), debugging=debug or _debugging)
        except BrokenPipeError:
            # Also where the message of another error could not be told.
            forget_reader()
            raise typer.Exit(CLOSED_PIPE) from None

    signature = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_DEBUG
    )
    parameters = [*signature.parameters.values(), option]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _run(act: Callable[[], None], *, debugging: bool) -> None:
    try:
        act()
    except OverspillError as error:
        _end_with(error, told_at_the_prompt(error), debugging=debugging)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        _end_with(error, f"{place}{error.strerror or error}", debugging=debugging)
    except MemoryError as error:
        told = f"the system gave no memory: {error}".removesuffix(": ")
        _end_with(error, f"{told}\n  what to do: see overspill doctor", debugging=debugging)
    except KeyboardInterrupt as error:
        notes = [at_the_prompt(note) for note in getattr(error, "__notes__", ())]
        told = "; ".join(notes) or "the same command starts over"
        _end_with(error, f"interrupted; {told}", status=_INTERRUPTED)


def _end_with(
    error: BaseException, told: str, *, status: int = 1, debugging: bool = False
) -> NoReturn:
    if debugging:
        raise error
    say(f"overspill: {harmless_lines(told)}", err=True, indent=2)
    raise typer.Exit(status) from error


app = typer.Typer(
    name="overspill",
    cls=Verbs,
    help="PyTorch tensors and graphs bigger than the memory you may use.",
    epilog=_STATUSES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it takes "[@KEY]" for a colour, and cuts words that are long
    pretty_exceptions_enable=False,
)
for _verb in (build, info, verify, partition, demo, status, clean, bench, doctor):
    app.command(cls=Verb)(_told_plainly(_verb))
for _inner in CLUSTER_VERBS:
    cluster.command(cls=Verb)(_told_plainly(_inner))
app.add_typer(cluster)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"overspill {__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    debug: _DEBUG = False,
    version: Annotated[  # noqa: ARG001 (its callback prints and ends)
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    global _debugging
    _debugging = debug


class _Harmless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless_lines(super().format(record))


def _show_warnings() -> None:
    """What the library warns of, as the command's own words: there is nobody else to show it."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless("overspill: %(message)s"))
    logging.getLogger("overspill").addHandler(handler)


def main() -> None:
    """Run the command.

    Exit status: 0 well, 1 an error or a finding that a person can act on, 2 wrong usage, 130
    interrupted, 141 (as of a process that SIGPIPE ends) where nobody reads the output any more.
    With --debug an error is Python's own, with its traceback and Python's status.
    """
    prepare_streams()
    _show_warnings()
    app()
