"""Why hooks on a module never ran: the likely cause, found when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from hookline.core.calls import Key
from hookline.core.patterns import FunctionPattern, did_you_mean
from hookline.modules.places import in_regions, traced_inside
from hookline.modules.targets import has_forward, why_empty
from hookline.torch_base.paths import way_to
from hookline.torch_base.private import children_of, compiled_codes, parameters_of
from hookline.torch_base.readable import gradient_of, version_of
from hookline.torch_base.regions import is_guarded
from hookline.torch_base.selection import listed
from hookline.torch_base.wrappers import class_names, runs_compiled

Reason: TypeAlias = tuple[str, str]
"""The cause, and what is known of it and can be done; see `Silent`."""

Gradients: TypeAlias = tuple[tuple[int, int | None], ...]
"""Which gradients there are, and how often each was written into."""

_COMPILED: Final = (
    "it runs inside a compiled region, which is one call (none, where a function was compiled): "
    "watch what torch.compile returned of a model, or run with "
    "torch.compiler.set_stance('force_eager')"
)
_USED: Final = (
    "its parameters have gradients: its forward() was called directly, or a function uses them; "
    "call the module itself, or watch the functions of its parent"
)
_NO_GRADIENT: Final = (
    "it was called, and the hook runs in the backward, of which none reached it: call backward() "
    "while it is watched, on what needs its output, with gradients on"
)
NO_GRADIENT: Final[Reason] = ("no gradient", _NO_GRADIENT)
"""The cause for a hook that runs in the backward, on a module that was called."""
LEFT_OUT: Final[Reason] = (
    "not called",
    "the modules around it ran without it, as where a branch is not taken",
)
"""The cause where a module around it was called."""
_NEVER: Final = (
    "no call was seen; call module(...), not module.forward(...), and where torch.compile was put "
    "around the model, watch what it returned"
)
NEVER: Final[Reason] = ("never called", _NEVER)
"""The cause where nothing better is known."""


class Reasons:
    """Finds likely causes from what a model is now, and from which of its modules ran.

    Args:
        model: the model; None if it is gone.
        seats: the paths of the modules that are in it now.
        ran: the modules that are known to have run.
        gradients: what `gradients_at` gave before, of those that had some.
    """

    def __init__(
        self,
        model: nn.Module | None,
        seats: Mapping[Any, tuple[str, ...]],
        ran: Collection[object],
        gradients: Mapping[Any, Gradients] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._seats = seats
        self._ran = ran
        self._gradients = gradients
        self._ran_at = sorted(path for key in ran for path in seats.get(key, ()))

    def of(self, path: str, module: nn.Module | None) -> Reason:
        """The likely cause for a module that never ran.

        Args:
            path: its path when it was chosen.
            module: the module; None if it is gone.
        """
        if self._model is None or module is None or Key(module) not in self._seats:
            return "replaced", f"{self._now_at(path)}; watch a model once its modules are final"
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript", "no hook can run in it; watch the module before it is scripted"
        if not has_forward(module):
            below = listed(f"{path}.{name}" if path else name for name in children_of(module))
            advice = f"watch the modules in it: {below}" if below else why_empty(module)
            return "no forward", f"containers are never called; {advice}"
        return (
            self._compiled(path)
            or self._fused(path, module)
            or self._bypassed(path, module)
            or self._left_out(path)
            or NEVER
        )

    def of_functions(
        self,
        path: str,
        module: nn.Module | None,
        wanted: FunctionPattern,
        called: Sequence[str] | None,
    ) -> Reason:
        """The likely cause for functions that a module never called.

        Args:
            path: the module's path when it was chosen.
            module: the module; None if it is gone.
            wanted: which were selected.
            called: the names of those that the module called; None if it never ran.
        """
        if module is not None and _is_region(module):
            return "compiled", _COMPILED
        return self.of(path, module) if called is None else function_not_called(wanted, called)

    def _now_at(self, path: str) -> str:
        if self._model is None:
            return "the model is gone"
        way = way_to(self._model, path)
        if way is None:
            return f"there is no {path!r} in the model any more"
        return f"at {path!r} is another module now, of type {class_names[type(way[-1])]}"

    def _compiled(self, path: str) -> Reason | None:
        above = self._above(path)
        own = self._way(path)[len(above) :]
        inside = any(map(_is_region, above))
        # Where it is compiled itself, the call of what it was compiled into is watched.
        outside = any(map(_has_compiled_code, (*above, own[-1]))) and not any(map(_is_region, own))
        # Code is that of a class, of which another module may have been compiled.
        if inside or own[-1] in traced_inside:
            return "compiled", _COMPILED
        if not self._ran and (outside or is_guarded(type(own[-1]))):
            return "compiled", _COMPILED
        return None

    def _fused(self, path: str, module: nn.Module) -> Reason | None:
        parent = next(iter(self._above(path)[-1:]), None)
        if not isinstance(parent, nn.MultiheadAttention):
            return None
        where = path.rpartition(".")[0]
        advice = (
            f"nn.MultiheadAttention never calls it and hands its weight to a function; watch "
            f"{where!r}, or '{where}:multi_head_attention_forward' with a function hook"
        )
        return "fused", advice

    def _bypassed(self, path: str, module: nn.Module) -> Reason | None:
        prefix = f"{path}." if path else ""
        at = bisect_left(self._ran_at, prefix)
        inner = next(iter(self._ran_at[at : at + 1]), "")
        if inner and inner.startswith(prefix):
            advice = (
                f"{inner!r} in it ran: its forward() was called directly, or somebody else calls "
                "the modules in it; call the module itself"
            )
            return "bypassed", advice
        now = gradients_at(module)
        if now and now != self._gradients.get(Key(module)):
            return "bypassed", _USED
        return None

    def _left_out(self, path: str) -> Reason | None:
        if not any(Key(module) in self._ran for module in self._above(path)):
            return None
        return LEFT_OUT

    def _way(self, path: str) -> list[nn.Module]:
        assert self._model is not None
        return way_to(self._model, path) or [self._model]

    def _above(self, path: str) -> list[nn.Module]:
        return self._way(path.rpartition(".")[0]) if path else []


def gradients_at(module: nn.Module) -> Gradients:
    """The gradients of a module's own parameters as they are now: another backward changes them."""
    found: Gradients = ()
    for parameter in parameters_of(module).values():
        if parameter is not None and (gradient := gradient_of(parameter)) is not None:
            found += ((id(gradient), version_of(gradient)),)
    return found


def _is_region(module: nn.Module) -> bool:
    return runs_compiled(module) or module in in_regions


def _has_compiled_code(module: nn.Module) -> bool:
    code: Any = getattr(module.forward, "__code__", None)
    return code is not None and bool(compiled_codes(code))


def function_not_called(wanted: FunctionPattern, called: Sequence[str]) -> Reason:
    """The likely cause for functions that never ran in a module which did.

    Args:
        wanted: which were selected.
        called: the names of those that the module called.
    """
    if any(map(wanted.names, called)):
        what = f"it was called there, but never for the index [{wanted.index}] of a pass"
    elif called:
        hint = did_you_mean(get_close_matches(wanted.name, called))
        what = f"the module called {listed(called)}{hint}"
    else:
        what = "the module ran and called no functions itself; select those inside, as in '**:name'"
    return "not called", what
