"""What reports need that is not installed with hookline unless asked for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias

from hookline.errors import MissingExtraError

Extra: TypeAlias = Literal["plot", "tensorboard"]

_EXTRAS: Final[dict[Extra, tuple[str, str]]] = {
    "plot": ("plots need", "matplotlib"),
    "tensorboard": ("TensorBoard files need", "tensorboard"),
}
"""For each extra, who needs it and the package that it installs."""


def check_extra(extra: Extra) -> None:
    """Refuse what needs an extra that is not installed; the package is not imported.

    Raises:
        MissingExtraError: it is not; the message says how to install it.
    """
    if find_spec(_EXTRAS[extra][1]) is None:
        raise _missing(extra)


@contextmanager
def needs_extra(extra: Extra) -> Generator[None]:
    """Around the import of what an extra installs.

    Raises:
        MissingExtraError: it can't be imported; the message says how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise _missing(extra) from error


def _missing(extra: Extra) -> MissingExtraError:
    who, package = _EXTRAS[extra]
    return MissingExtraError(f"{who} {package}: pip install 'hookline[{extra}]'")
