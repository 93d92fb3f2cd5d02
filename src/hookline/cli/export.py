"""`hookline export`: a run in another format."""

from __future__ import annotations

from pathlib import Path

import click

from hookline.cli.told import told
from hookline.record.runs import load
from hookline.report.formats import FORMATS
from hookline.report.formats import export as write


@click.command(
    short_help="Write a run as a report, table or trace.",
    epilog="""\b
    Examples:
      hookline export run.hookline -o report.html      to look at in a browser, offline
      hookline export run.hookline -o run.csv          tables, run.stats.csv and so on beside
      hookline export run.hookline -o run.trace.json   for ui.perfetto.dev or chrome://tracing
    """,
)
@click.argument("run", metavar="RUN", type=click.Path(dir_okay=False))
@click.option(
    "-o",
    "outputs",
    required=True,
    multiple=True,
    type=click.Path(dir_okay=False),
    help=f"The file; its ending is the format: {', '.join(FORMATS)}. May be given several times.",
)
def export(run: str, outputs: tuple[str, ...]) -> None:
    """Write RUN, a file that `hookline run -o` kept, in other formats."""
    try:
        with told():
            loaded = load(run)
            for output in outputs:
                write(loaded, Path(output))
    except OSError as error:
        msg = f"could not write {error.filename or 'the file'}: {error.strerror or error}"
        raise click.ClickException(msg) from error
