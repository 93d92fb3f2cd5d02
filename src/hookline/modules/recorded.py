"""What `torch.fx` traces, without the calls of modules: it stands above ours in their `__call__`.

So do `make_fx` and `torch.export`, which are built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final
from weakref import ref

from torch import fx, nn

from hookline.core.thread import local
from hookline.modules.places import everywhere, registries_at
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.recording import recorded_by, warn_of


def _stand_in(stand: Stand) -> Callable[..., fx.Graph]:
    def trace(tracer: fx.Tracer, root: Any, *args: Any, **kwargs: Any) -> fx.Graph:
        if stand.active and isinstance(root, nn.Module) and not local.thread.busy:
            warn_of(_left_out(tracer, root), recorded_by() or "torch.fx")
        return stand.original(tracer, root, *args, **kwargs)

    return trace


def _left_out(tracer: fx.Tracer, root: nn.Module) -> Iterator[tuple[str, Any]]:
    """The hooks on modules that the recorded program does not call."""
    for path, module in root.named_modules():
        if not path or not tracer.is_leaf_module(module, path):
            own = (registry.lineup.entries for registry in registries_at(ref(module)))
            for entry in chain(everywhere.lineup.entries, *own):
                yield f"{path!r} ({type(module).__name__})", entry


patch: Final = Patch(fx.Tracer, "trace", _stand_in)
