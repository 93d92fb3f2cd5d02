"""Errors of what the user gave, told in a line."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click

from hookline.errors import HookValueError, MissingExtraError, RunFileError


@contextmanager
def told() -> Generator[None]:
    """What is wrong with what the user gave ends the command with a line.

    Raises:
        ClickException: there is such a thing.
    """
    try:
        yield
    except (HookValueError, MissingExtraError, RunFileError) as error:
        raise click.ClickException(str(error)) from error
