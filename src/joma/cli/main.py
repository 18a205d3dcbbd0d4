"""The `joma` command: one file per verb beside this one."""

import sys
from typing import Annotated

import typer

from joma._core.errors import JomaError
from joma._core.version import __version__
from joma.cli.audit import audit
from joma.cli.bench import bench
from joma.cli.check import check
from joma.cli.demo import demo
from joma.cli.diagnose import diagnose
from joma.cli.doctor import doctor
from joma.cli.errata import errata
from joma.cli.inspect import inspect
from joma.cli.keep import keep
from joma.cli.ls import ls
from joma.cli.plan import plan
from joma.cli.plot import plot
from joma.cli.report import report
from joma.cli.run import run
from joma.cli.show import show
from joma.cli.sweep import sweep

app = typer.Typer(
    name="joma",
    help="How Transformers learn, while they learn: theory, checks and measurements.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (
    *(demo, doctor, ls),
    *(inspect, diagnose, report),
    *(plan, audit, sweep),
    *(errata, show, run, check, plot, keep),
    bench,
)
for verb in VERBS:
    app.command()(verb)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"joma {__version__}")
        raise typer.Exit
    return wanted  # what a callback returns is what the option becomes


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error of ours is a sentence, not a traceback."""
    try:
        app()
    except JomaError as error:
        typer.echo(f"joma: {error}", err=True)
        sys.exit(2)
