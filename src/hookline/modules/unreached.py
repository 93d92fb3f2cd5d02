"""Hooks that were put on given modules, and which these do not reach since they run compiled.

A region that `torch.compile` made is one call to hook objects. Of one that watches all modules that
is to be expected; who named a module inside waits in vain, and is told at the first pass. Of a
function that was given to `torch.compile` no call is seen at all: there it is told when that is
compiled, if hooks are on then.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from hookline.core.caller import caller_level
from hookline.core.calls import Key
from hookline.core.demand import Aim, demand
from hookline.core.thread import local
from hookline.errors import HookWarning
from hookline.torch_base import private
from hookline.torch_base.selection import listed
from hookline.torch_base.wrappers import inside, runs_compiled


class ModuleAim(NamedTuple):
    """A module that a hook was put on.

    Attributes:
        key: a weak reference to it.
        path: its path; empty if not known.
        function: none is meant.
        fired: nothing; the pass tells whether it was called.
    """

    key: Key[nn.Module]
    path: str = ""
    function: None = None
    fired: bool = False


class _Place(NamedTuple):
    """Where a module stands below the one that is called.

    Attributes:
        path: its path from there.
        hidden: whether it runs inside of a region.
        hides: whether what it calls does.
    """

    path: str
    hidden: bool = False
    hides: bool = False


def telling(original: Callable[..., Any]) -> Callable[..., Any]:
    """What runs an outermost call, and tells of hooks that were put on what compiled code hides.

    Each hook is looked at in the first such call of a model that it is on.

    Args:
        original: what runs it.
    """
    if "torch._dynamo.eval_frame" not in sys.modules or private.is_eager():
        return original
    return partial(_then_tell, original)


def _then_tell(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    out = original(module, *args, **kwargs)
    tell_unreached(module)
    return out


def tell_unreached(module: nn.Module) -> None:
    """Warn of hooks on what compiled code hides, once a model has run."""
    _tell(module, _Place("", hides=runs_compiled(module)))


def tell_traced(module: nn.Module) -> None:
    """Warn of hooks on a module that is being compiled, and on those in it.

    Where it is in a region that Python calls as a module, that is told after that call.
    """
    if not any(runs_compiled(_module_of(frame)) for frame in local.thread.stack):
        _tell(module, _Place("", hidden=True, hides=True))


def _module_of(frame: Any) -> nn.Module:
    return frame if isinstance(frame, nn.Module) else frame.module


def _tell(module: nn.Module, top: _Place) -> None:
    places = dict(_places(module, top))
    found: dict[str, list[str]] = {}
    for entry, aims in list(demand.aims.items()):
        here = [aim for aim in aims if aim.key in places]
        if here:
            demand.aims.pop(entry, None)
        for aim in here:
            if _is_missed(aim, places[aim.key]):
                found.setdefault(entry.name, []).append(aim.path or places[aim.key].path)
    if found:
        warnings.warn(_message(found), HookWarning, stacklevel=caller_level())


def _message(found: Mapping[str, Iterable[str]]) -> str:
    what = ", ".join(f"{name} on {listed(paths)}" for name, paths in found.items())
    return (
        f"hooks were not reached, since they are on what runs inside of code that torch.compile "
        f"made, which is one call to them: {what}. Run without compiling, as inside of "
        "torch.compiler.set_stance('force_eager'); or take the module out of the compiled code by "
        "torch.compiler.disable(module). What register_forward_hook(module, function) registers "
        "is compiled too, and does run"
    )


def _is_missed(aim: Aim, place: _Place) -> bool:
    if aim.function is not None:
        return place.hides and not aim.fired
    running = local.thread.running
    called = running is not None and aim.key in running.starts
    return place.hidden and not called


def _places(module: nn.Module, top: _Place) -> Iterator[tuple[Key[nn.Module], _Place]]:
    """A module with its place, and all below it with theirs."""
    pending, known = [(module, top)], {module}
    while pending:
        current, place = pending.pop()
        yield Key(current), place
        for name, child in private.children_of(current).items():
            if child is not None and child not in known:
                known.add(child)
                pending.append((child, _below(current, place, name, child)))


def _below(module: nn.Module, place: _Place, name: str, child: nn.Module) -> _Place:
    if inside(module) is child:
        return place  # one call, under one path
    path = f"{place.path}.{name}" if place.path else name
    return _Place(path, place.hides, place.hides or runs_compiled(child))
