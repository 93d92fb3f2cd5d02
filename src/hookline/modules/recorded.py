"""What `torch.fx` records, without the calls of modules: it stands above ours in their `__call__`.

So do `make_fx` and `torch.export`, which are built on it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final
from weakref import ref

from torch import fx, nn

from hookline.core.entry import Entry
from hookline.core.thread import local
from hookline.modules.places import everywhere, registries_at
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.recording import recorded_by, warn_of


def _stand_in(stand: Stand) -> Callable[..., fx.Graph]:
    def trace(tracer: fx.Tracer, root: Any, *args: Any, **kwargs: Any) -> fx.Graph:
        if not stand.active or local.thread.busy:
            return stand.original(tracer, root, *args, **kwargs)
        found = hooks_on(root) if isinstance(root, nn.Module) else []
        call_module = tracer.call_module

        def seen(module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            def inlined(*args: Any, **kwargs: Any) -> Any:
                found.extend(hooks_on(module))
                return forward(*args, **kwargs)

            return call_module(module, inlined, args, kwargs)

        tracer.call_module = seen  # type: ignore[method-assign]
        try:
            return stand.original(tracer, root, *args, **kwargs)
        finally:
            del tracer.call_module
            warn_of(found, recorded_by() or "torch.fx")

    return trace


def hooks_on(module: nn.Module) -> list[tuple[str, Entry]]:
    """All hooks that run for the calls of a module in every thread, each with the class name."""
    own = (registry.lineup.entries for registry in registries_at(ref(module)))
    return [(type(module).__name__, entry) for entry in chain(everywhere.lineup.entries, *own)]


patch: Final = Patch(fx.Tracer, "trace", _stand_in)
"""Makes known what is recorded."""
