"""What is watched: the selected modules and functions, and which of them never ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from torch import nn

from hookline.core.calls import Key, Pass
from hookline.core.entry import Entry
from hookline.core.phases import Phase
from hookline.core.records import Silent
from hookline.core.thread import local
from hookline.errors import HookValueError
from hookline.functions.chosen import Chosen
from hookline.modules.silence import NO_GRADIENT, Reason, Reasons, gradients_at
from hookline.torch_base.given import Given
from hookline.torch_base.selection import Choice, Selection
from hookline.torch_base.wrappers import class_names

_FORWARD: Final = frozenset({Phase.FORWARD_PRE, Phase.FORWARD})


class Seat:
    """A selected module or function, held weakly.

    Attributes:
        path: its path or address.
        module: the module.
        called: what is called in its place, where it is wrapped or compiled.
        function: which functions of the module are meant; None for the module itself.
        type: the class name of the module.
        entries: the module hooks that were put on it.
        gradients: those that its parameters had already.
    """

    __slots__ = (
        "_exact",
        "called",
        "entries",
        "function",
        "gradients",
        "module",
        "path",
        "type",
    )

    def __init__(self, choice: Choice) -> None:
        self.path: Final = choice.path
        self.module: Final[Key[nn.Module]] = Key(choice.module)
        self.called: Final[Key[nn.Module]] = Key(choice.called)
        self.function: Final = choice.function
        self.type: Final = class_names[type(choice.module)]
        self.entries: Final[list[Entry]] = []
        self.gradients: Final = gradients_at(choice.module)
        self._exact = choice.exact

    @property
    def choice(self) -> Choice | None:
        """What was selected; None once it is gone."""
        module, called = self.module(), self.called()
        if module is None or called is None:
            return None
        return Choice(self.path, module, called, self.function, self._exact)


class Watched:
    """The seats of a watch, and which hooks there are.

    It keeps neither the model nor its modules alive.

    Args:
        given: the model.
        choices: what was selected in it.
        names: of the module hooks, which stand at the seats.

    Attributes:
        chosen: the function hooks, by name, with what they are for.
    """

    def __init__(self, given: Given, choices: Iterable[Choice], names: Iterable[str]) -> None:
        self.root: Final = given.root
        self._given: Final = given
        self.seats: Final = [Seat(choice) for choice in choices]
        self.chosen: Final[list[tuple[str, Chosen]]] = []
        self._names: Final = list(names)
        self._first_pass = 1 + max((p.number for p in self._passes()), default=-1)

    @property
    def names(self) -> list[str]:
        """The names of all hooks."""
        return list(dict.fromkeys((*self._names, *(name for name, _ in self.chosen))))

    def selection(self) -> Selection:
        """What is watched, as far as it is still there.

        Raises:
            HookValueError: the model is gone.
        """
        model = self._given.model
        if model is None:
            msg = f"the model of this watch ({self.root.name}) is gone"
            raise HookValueError(msg)
        choices = (seat.choice for seat in self.seats)
        return Selection(model, [choice for choice in choices if choice is not None])

    def silent(self) -> list[Silent]:
        """The seats at which hooks never ran, each with the likely cause."""
        ran, given = self._ran(), self._given
        given.walk(given.version)  # a change may have come unseen, while no hook was on
        before = {seat.module: seat.gradients for seat in self.seats if seat.gradients}
        reasons = Reasons(given.model, given.seats, ran, before)
        found: dict[tuple[int, Reason], list[str]] = {}
        for place, seat in enumerate(self.seats):
            for name, reason in (
                *self._without_events(seat, ran, reasons),
                *self._without_functions(place, seat, ran, reasons),
            ):
                found.setdefault((place, reason), []).append(name)
        return [
            Silent(
                self.seats[place].path,
                self.seats[place].type,
                *reason,
                tuple(names),
                self.root.name,
            )
            for (place, reason), names in found.items()
        ]

    def _without_events(
        self, seat: Seat, ran: set[object], reasons: Reasons
    ) -> Iterator[tuple[str, Reason]]:
        """The module hooks that never ran at a seat, and why."""
        if seat.function is not None:
            return
        for name in self._names if not seat.entries else ():
            yield name, reasons.of(seat.path, seat.module())
        for entry in seat.entries:
            if not entry.fired:
                late = seat.called in ran and _FORWARD.isdisjoint(entry.phases)
                yield entry.name, NO_GRADIENT if late else reasons.of(seat.path, seat.module())

    def _without_functions(
        self, place: int, seat: Seat, ran: set[object], reasons: Reasons
    ) -> Iterator[tuple[str, Reason]]:
        """The function hooks that never ran at a seat, and why."""
        for name, chosen in self.chosen:
            called = chosen.called_by(seat.called)
            if chosen.targets[place].fired or (seat.function is None and seat.called in ran):
                continue
            if seat.function is None:
                yield name, reasons.of(seat.path, seat.module())
            else:
                path, known = seat.path.rpartition(":")[0], called if seat.called in ran else None
                yield name, reasons.of_functions(path, seat.module(), seat.function, known)

    def _ran(self) -> set[object]:
        """The modules that are known to have run while it was open."""
        ran: set[object] = {
            seat.called
            for seat in self.seats
            if any(entry.fired for entry in seat.entries)
            or any(chosen.called_by(seat.called) for _, chosen in self.chosen)
        }
        for each in self._passes():
            if each.number >= self._first_pass:
                # What opened a pass ran, whether it was watched or not.
                ran.update(each.starts, (each.opener,))
        return ran | {seat.module for seat in self.seats if seat.called in ran}

    def _passes(self) -> Sequence[Pass]:
        """The latest passes of the model in this thread."""
        return [p for p in local.thread.passes if p.root is self.root]
