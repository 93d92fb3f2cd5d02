"""What does not travel with a copy or pickle of that which holds it."""

from __future__ import annotations


class StaysHere:
    """Belongs to a registration in this process: elsewhere, None stands in its place.

    A model may well keep a handle as an attribute; its copies and pickles have no hooks, so there
    is nothing that theirs could remove.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()
