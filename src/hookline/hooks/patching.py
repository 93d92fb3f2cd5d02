"""Changing what flows through a call, at both levels: which edits, on which leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from hookline.core.phases import Phase
from hookline.core.records import Silent
from hookline.core.travel import MadeAnew
from hookline.errors import HookValueError
from hookline.hooks.arguments import parameter_names
from hookline.hooks.changes import edits_of
from hookline.hooks.editing import Edit, Site
from hookline.hooks.leafpath import Keys, Leaf, leaves_of, listed_leaves, matching
from hookline.hooks.numbers import Numbers
from hookline.hooks.pick import EditError
from hookline.torch_base.tree import Tree

if TYPE_CHECKING:
    from hookline.core.calls import Call
    from hookline.modules.call import ModuleCall

_marks: Final = count()


class Placed:
    """An edit at one place.

    Attributes:
        edit: the edit.
        pattern: for which it was given, if any.
        path: where that is; empty if not known.
        type: the class name of the module there.
        seen: whether a call was seen.
        made: whether it ever changed something.
    """

    __slots__ = ("edit", "made", "path", "pattern", "seen", "type")

    def __init__(self, edit: Edit, pattern: str = "", path: str = "", type: str = "") -> None:  # noqa: A002 - see above
        self.edit: Final = edit
        self.pattern: Final = pattern
        self.path: Final = path
        self.type: Final = type
        self.seen = self.made = False

    @property
    def silent(self) -> Silent | None:
        """Why it was never made, where calls were seen."""
        if self.made or not self.seen:
            return None
        is_grad = self.edit.target == "grad"
        cause, advice = ("no gradient", _NO_GRADIENT) if is_grad else ("not called", _OTHER_CALLS)
        return Silent(self.path, self.type, cause, advice, (repr(self.edit),))


_NO_GRADIENT: Final = (
    "it was called, and no gradient of its output came that the edit could change: call backward() "
    "while the patch is on, on what needs its output, with gradients on; a function that returns "
    "its input as it is, or makes its output of constants, has no gradient of its own"
)
_OTHER_CALLS: Final = "it was called, but not in the calls that the edit is for"

Planned = Callable[[Any], Sequence[Placed]]
"""The edits for a call."""


class Patching(MadeAnew):
    """What the patch hooks of both levels have in common."""

    watched_phases: Collection[Phase] | None = None
    joint: bool = False
    _first = False

    def __init__(self, *edits: object) -> None:
        placed = tuple(Placed(edit) for edit in edits_of(list(edits)))
        self._mark: Final = f"_patched_{next(_marks)}"
        self._mark_arrived: Final = f"{self._mark}_gradients"
        self._numbers: Final = Numbers()
        self.follow(lambda _: placed, placed)

    def follow(self, plan: Planned, placed: Iterable[Placed]) -> None:
        """Take the edits of each call from a plan.

        Args:
            plan: gives the edits for a call.
            placed: all edits that there are in it.
        """
        self._plan = plan
        self.edits: tuple[Edit, ...] = tuple(each.edit for each in placed)
        """The edits, in the order in which they are made."""
        self._counts = any(edit.counts for edit in self.edits)
        targets = {edit.target for edit in self.edits}
        self._patches_output = "output" in targets
        self.joint = "grad" in targets
        self.watched_phases = _phases(targets, begins=self._counts or self._first)

    def _begin(self, call: Any, key: Hashable) -> None:
        """Number a call whose forward begins."""
        if self._counts:
            call.__dict__[self._mark] = self._numbers.of(call, key)

    def _edits(self, call: Any, target: str) -> list[Placed]:
        """The edits of one target that are for a call."""
        number = call.__dict__.get(self._mark)
        placed = self._plan(call)
        for each in placed:
            each.seen = True
        return [p for p in placed if p.edit.target == target and p.edit.takes(number, call)]

    def _edited(
        self, call: Any, target: str, find: Callable[[], list[Leaf]]
    ) -> list[Tensor] | None:
        """The tensors after the edits; None if there are none to be made."""
        placed = self._edits(call, target)
        if not placed:
            return None
        found = find()
        for each in placed:
            keys, places = _meant(each, found, call)
            each.made = each.made or bool(places)
            for place in places:
                path, inner, old = found[place]
                site = Site(call, inner[len(keys) :])
                found[place] = Leaf(path, inner, _make(each, old, site, path, call))
        return [leaf.tensor for leaf in found]

    def _check_gradients(self, call: Any, out: object) -> None:
        """Refuse an edit on the gradient of an output that there is not."""
        placed = self._edits(call, "grad") if self.joint else None
        if placed:
            found = leaves_of(out, "grad", ("grad",))
            for each in placed:
                if not matching(found, _ways(each.edit.keys, call, found))[1]:
                    raise HookValueError(_nothing_there(each, found, call))

    def _edited_gradients(self, call: Any, found: list[Leaf]) -> list[Tensor] | None:
        """The gradients after the edits, of those that arrived first."""
        call.__dict__[self._mark_arrived] = {leaf.keys for leaf in found}
        return self._edited(call, "grad", lambda: found)

    def _check_late(self, call: Any, found: list[Leaf]) -> None:
        """Refuse an edit on a gradient that flowed on before the edit could be made."""
        arrived = call.__dict__.pop(self._mark_arrived, ())
        late = [leaf for leaf in found if leaf.keys not in arrived]
        if not late or call.window is None or not call.window.late:
            return
        for each in self._edits(call, "grad"):
            for place in _meant(each, late, call)[1]:
                msg = (
                    f"{_who(each)} at {late[place].path} of {call.describe()}: this gradient "
                    "arrived after others, when it could not be changed any more; change it "
                    "where the output is used"
                )
                raise HookValueError(msg)

    def _edited_output(self, call: Any, out: object) -> Any:
        """The output after the edits; the same object if there are none to be made."""
        new = self._edited(call, "output", lambda: leaves_of(out, "output", ("output",)))
        return out if new is None else Tree.of(out).rebuild(new)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(map(repr, self.edits))}>"


def _phases(targets: set[str], *, begins: bool) -> frozenset[Phase]:
    phases = {Phase.FORWARD_PRE} if begins or "input" in targets else set[Phase]()
    if "output" in targets:
        phases |= {Phase.FORWARD}
    if "grad" in targets:
        phases |= {Phase.FORWARD, Phase.BACKWARD_PRE, Phase.BACKWARD}
    return frozenset(phases)


def _make(each: Placed, old: Tensor, site: Site, path: str, call: Any) -> Tensor:
    try:
        return each.edit.changed(old, site)
    except EditError as error:
        msg = f"{_who(each)} at {path} of {call.describe()}: {error}"
        raise error.kind(msg) from error.__cause__


def _who(each: Placed) -> str:
    pattern = f" for {each.pattern}" if each.pattern else ""
    return f"patch{pattern}: {each.edit!r}"


def _meant(each: Placed, found: list[Leaf], call: Any) -> tuple[Keys, list[int]]:
    keys, places = matching(found, _ways(each.edit.keys, call, found))
    if not places and each.edit.target != "grad":  # gradients may be None
        raise HookValueError(_nothing_there(each, found, call))
    return keys, places


def _nothing_there(each: Placed, found: list[Leaf], call: Call) -> str:
    return (
        f"{_who(each)}: there is no tensor at {each.edit.on!r} of {call.describe()}; "
        f"there is {listed_leaves(found)}"
    )


def _ways(keys: Keys, call: Any, found: list[Leaf]) -> Iterable[Keys]:
    """The readings of a path, the likeliest first."""
    target, *rest = keys
    yield keys
    if rest and len(found) == 1 and found[0].keys == keys[:1]:
        if rest == [0] and target != "output":  # the only one, which may well be called the first
            yield keys[:1]
        return
    if target == "input" and rest:
        yield ("input", "args", 0, *rest) if _is_bare(call) else keys
        yield ("input", "args", *rest)
        yield ("input", "kwargs", *rest)
        place = _place_of(call, rest[0])
        if place is not None:
            yield ("input", "args", place, *rest[1:])


def _is_bare(call: Any) -> bool:
    return len(call.args) == 1 and not call.kwargs


def _place_of(call: ModuleCall, name: str | int) -> int | None:
    """The place of a parameter of a module's `forward` among the positional arguments."""
    names = parameter_names(call.module) if hasattr(call, "path") else []
    return names.index(name) if name in names else None


def inputs_of(call: ModuleCall) -> list[Leaf]:
    """The tensors in the inputs of a module's call, in the order of `Tree.of((args, kwargs))`."""
    if _is_bare(call):
        return leaves_of(call.args[0], "input", ("input", "args", 0))
    return [
        *leaves_of(call.args, "input.args", ("input", "args")),
        *leaves_of(call.kwargs, "input.kwargs", ("input", "kwargs")),
    ]


def gradients_of(grad_output: Any) -> list[Leaf]:
    """The gradients of a module's outputs that there are."""
    if type(grad_output) is tuple and len(grad_output) == 1:
        return leaves_of(grad_output[0], "grad", ("grad", 0))
    return leaves_of(grad_output, "grad", ("grad",))
