"""Every private name of torch that hookline stands on, each with its reason.

They are looked up here, once, at import; a torch that lacks one is named in the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter, methodcaller
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.utils.checkpoint as _checkpoint  # so that the name below is there
from torch import nn

from hookline.errors import HooklineError


def _find(path: str) -> Any:
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            msg = (
                f"this torch ({torch.__version__}) has no torch.{path}, which hookline needs; "
                "use a torch release that hookline supports (2.13 or later)"
            )
            raise HooklineError(msg)
    return found


sequence_number: Callable[[], int] = _find("_C._autograd._get_sequence_nr")
"""The number that this thread's next autograd node will get. A call's nodes are those numbered
between its begin and its end; `torch.autograd.graph.node_creation_hook` may replace it."""

set_grad_enabled: Callable[[bool], None] = _find("_C._set_grad_enabled")
"""Turns gradients on or off. In the public way an interrupt may come before or after that, and
what should be put back is not."""

current_node: Callable[[], Any] = _find("_C._current_autograd_node")
"""The node that the engine is running in this thread: tells whose call a checkpoint repeats."""

stash: Callable[[str, Any], None] = _find("_C._stash_obj_in_tls")
unstash: Callable[[str], None] = _find("_C._remove_obj_from_tls")
stashed: Callable[[str], Any] = _find("_C._get_obj_in_tls")
is_stashed: Callable[[str], bool] = _find("_C._is_key_in_tls")
"""Thread-local objects that autograd hands to its worker threads: there, hooks are those of the
thread that called backward. Context variables and `threading.local` are empty in workers."""

StopRecomputation: type[BaseException] = _find("utils.checkpoint._StopRecomputationError")
"""Ends a checkpoint's recomputation early: steering, no error."""
assert _checkpoint.checkpoint

_repeating: str = _find("utils.checkpoint._recomputation_hook").__qualname__
_saved_tensor_hooks: Callable[[bool], Any] = _find("_C._autograd._top_saved_tensors_default_hooks")


def is_repeating() -> bool:
    """Whether a non-reentrant checkpoint is repeating its part: its hooks for saved tensors are on.

    Torch tells nobody; the autograd node that runs may be any.
    """
    hooks = _saved_tensor_hooks(True)  # noqa: FBT003 - whether or not something is traced
    return hooks is not None and getattr(hooks[1], "__qualname__", "").startswith(_repeating)


_storing: str = _find("utils.checkpoint._checkpoint_hook").__qualname__
_run_reentrant: Any = _find("utils.checkpoint.CheckpointFunction").forward.__code__


def checkpointed_parts() -> Iterator[tuple[Any, str]]:
    """Where the checkpoints whose parts run forward keep what they will run again.

    An object and the name of its attribute. Of a non-reentrant one, the innermost, the hooks for
    saved tensors lead to it; reentrant ones are among the frames, and only where gradients are off.
    """
    hooks = _saved_tensor_hooks(True)  # noqa: FBT003 - whether or not something is traced
    if hooks is not None and getattr(hooks[0], "__qualname__", "").startswith(_storing):
        free = zip(hooks[0].__code__.co_freevars, hooks[0].__closure__, strict=True)
        yield dict(free)["frame"].cell_contents, "recompute_fn"
    frame = None if torch.is_grad_enabled() else inspect.currentframe()
    while frame is not None:
        if frame.f_code is _run_reentrant:
            yield frame.f_locals["ctx"], "run_function"
        frame = frame.f_back


operator_schemas: Callable[[str], Any] = _find("_C._jit_get_schemas_for_operator")
all_schemas: Callable[[], Any] = _find("_C._jit_get_all_schemas")
"""Operators' schemas: tell whether a C function makes or writes a tensor, and give readable names
to autograd nodes. There is no public list of operators."""

mode_count: Callable[[], int] = _find("_C._len_torch_function_stack")
mode_at: Callable[[int], Any] = _find("_C._get_function_stack_at")
push_mode: Callable[[Any], None] = _find("_C._push_on_torch_function_stack")
pop_mode: Callable[[], Any] = _find("_C._pop_torch_function_stack")
"""The thread's stack of function modes. The public `with` needs last in, first out, but scopes may
end in any order and other modes may lie above ours."""

apply_owner: Any = _find("autograd.function._SingleLevelFunction")
if not isinstance(vars(torch.autograd.Function)["apply"], classmethod):
    apply_owner = torch.autograd.Function  # from torch 2.14 on, its `apply` is C, which calls none
"""The class whose `apply` sees each call of a custom function, as modes do not: below
`torch.autograd.Function`, also those through an `apply` that was bound earlier."""

torch_function_off: Callable[[], Any] = _find("_C.DisableTorchFunction")
"""Our own tensor operations inside a backward are no functions of the program's."""

transform_level: Callable[[], int | None] = _find("_C._functorch.maybe_current_level")
is_transformed: Callable[[torch.Tensor], bool] = _find("_C._functorch.is_functorch_wrapped_tensor")
is_batched_gradient: Callable[[torch.Tensor], bool] = _find("_C._functorch.is_legacy_batchedtensor")
unwrapped: Callable[[torch.Tensor], torch.Tensor] = _find("_C._functorch.get_unwrapped")
batch_dim: Callable[[torch.Tensor], int] = _find("_C._functorch.maybe_get_bdim")
"""A tensor that was captured inside a `torch.func` transform stands for another, which is needed
once the transform is over. There is no public way to it. A gradient under `is_grads_batched` stands
for many, and can be neither detached nor read."""

dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack")
dispatch_mode_at: Callable[[int], Any] = _find("_C._get_dispatch_stack_at")
push_dispatch_mode: Callable[[Any], None] = _find("_C._push_on_torch_dispatch_stack")
_pop_dispatch_mode: Callable[[Any], Any] = _find("_C._pop_torch_dispatch_stack")
"""The thread's stack of dispatch modes, which see operators; for the same reason."""

is_tracing: Callable[[], bool] = _find("_C._is_tracing")
dispatch_mode: Callable[[Any], Any] = _find("_C._get_dispatch_mode")
dispatch_mode_keys: Any = _find("_C._TorchDispatchModeKey")
"""Tell that operations are being recorded (`torch.jit.trace`, `make_fx`, `torch.export`) or are
only pretended: a look at a tensor's values would then become part of the program."""

_COMPOSITE: Any = _find("_C.DispatchKey.CompositeImplicitAutograd")
_has_kernel: Callable[[str, Any], bool] = _find("_C._dispatch_has_kernel_for_dispatch_key")
_key_of_device: Callable[[str], str] = _find("_C._dispatch_key_for_device")
"""Tell the operators that are made of others, as `linear` is. In inference mode they come whole to
a dispatch mode. The public `decompose` runs what is registered in Python for some of them, which
does not give the same bits as their own kernels."""

HigherOrderOperator: type = _find("_ops.HigherOrderOperator")
"""The class of operators that take functions, such as `torch.cond`."""

FakeTensor: type[torch.Tensor] = _find("_subclasses.fake_tensor.FakeTensor")
"""Tensors that only pretend: to operators they are like plain ones."""

compiling: Any = _find("_guards._TLS")
"""Its `tracing_context` is there while the compiler and its backend work in this thread, which call
modules of their own. The public `torch.compiler.is_compiling` is false then."""

fx_flags: Any = _find("fx._symbolic_trace")
fx_flag: str = "_is_fx_tracing_flag"
if hasattr(fx_flags, "_is_fx_tracing_tls"):  # from torch 2.14 on, each thread has its own
    fx_flags, fx_flag = _find("fx._symbolic_trace._is_fx_tracing_tls"), "flag"
else:
    _find(f"fx._symbolic_trace.{fx_flag}")
"""Where a flag tells that `torch.fx.symbolic_trace` runs, and its name; `is_fx_tracing` warns."""

_find("autograd._engine_run_backward")
"""What every `backward` and `grad` goes through; hookline stands in its place while hooks are
on. No public call sees the begin, the end and the failure of a run."""

REPLICATE = "_replicate_for_data_parallel"
_find(f"nn.Module.{REPLICATE}")
"""Makes a replica of a module for `DataParallel`. Nothing public tells which module it is of."""

COMPILER = "torch._dynamo.utils"
"""Keeps `nn.Module.__call__` when it is imported, and passes over what it takes for torch's own.
Nothing is looked up here: a missing one is never imported."""

compiled_codes: Callable[[Any], list[Any]] = _find(
    "_C._dynamo.eval_frame._debug_get_cache_entry_list"
)
"""What dynamo made of a code object: tells that a module runs inside a compiled region, where it
does not call the modules in it."""

forget_compiled: Callable[[Any], None] = _find("_C._dynamo.eval_frame.reset_code")
"""Throws away what was compiled of one code object. The public `torch.compiler.reset` throws away
all that the process has compiled."""

set_strategy: Callable[[Any, Any], None] = _find("_C._dynamo.eval_frame.set_code_exec_strategy")
FrameStrategy: Any = _find("_C._dynamo.eval_frame._FrameExecStrategy")
FrameAction: Any = _find("_C._dynamo.eval_frame._FrameAction")
"""Tell the compiler to leave code of ours alone where Python runs it between two graphs, at no cost
to a call. `torch.compiler.disable` puts a function around each, and imports the compiler."""

CONSTANT = "_dynamo_marked_constant"
"""The attribute by which `torch.compiler.assume_constant_result` marks a function that dynamo calls
instead of tracing it. Called itself, that would import the compiler, which takes a second."""

APART = "_torchdynamo_disable"
"""The attribute by which `torch.compiler.disable` marks a function that stays out of graphs."""

ORIGINAL = "_torchdynamo_orig_callable"
"""The attribute by which what `torch.compile` and `torch.compiler.disable` make of a function leads
to that."""

_stepping: Any = _find("optim.Optimizer.profile_hook_step")(lambda: None).__code__
"""What runs an optimizer's step and calls the public hooks around it. These are told of the
optimizer, and not of the step that it may be a part of."""


def steps_around() -> Iterator[Any]:
    """The optimizers whose steps run in this thread, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _stepping:
            yield frame.f_locals["self"]
        frame = frame.f_back


def compiler() -> Any:
    """Dynamo, once it is there: the translator that traces now, its guards, its known code.

    Only `torch.compiler.reset` is public, and there is no public way to add a guard.
    """
    from torch import _dynamo

    return _dynamo


def is_eager() -> bool:
    """Whether compiled models run as they are, by `torch.compiler.set_stance`, which has no reader.

    To be asked once the compiler is there.
    """
    return compiler().eval_frame._stance.stance == "force_eager"  # noqa: SLF001


COMPILED = "torch._dynamo.eval_frame.OptimizedModule"
COMPILERS_OWN = "torch.fx._lazy_graph_module._LazyGraphModule"
"""What the compiler makes of its graphs, and calls in some backends; people's are without it."""
SHARDED = "torch.distributed.fsdp.FSDPModule"
WRAPPERS = {
    COMPILED: "_orig_mod",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "_fsdp_wrapped_module"
    ),
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper": (
        "_checkpoint_wrapped_module"
    ),
}
"""Classes around a model, by name since few programs load them, and the name under which each holds
it. Torch has no common class for them, nor a public way from all of them to the model."""

NO_SEQUENCE = 2**64 - 1
"""The number of `AccumulateGrad` nodes, which belong to no call."""

LEAF_NODE: type = _find("_C._functions.AccumulateGrad")
"""Their class: half of the nodes of many graphs, told apart without asking each for its number."""

MARKS = "hookline"
"""The key under which a node's metadata holds the marks of the calls that it belongs to."""

ALIAS = "hookline alias"
"""The key that tells the node of an alias that the engine made, which is no function; the value
says whether it is an alias of a leaf."""


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """The direct children by name, those under two names twice (`named_children` drops them)."""
    children = module._modules  # noqa: SLF001
    # Of TorchScript it has neither `get` nor an iterator.
    return children if isinstance(children, dict) else dict(children.items())


def parameters_of(module: nn.Module | None) -> Mapping[str, nn.Parameter | None]:
    """The module's own parameters by name (`named_parameters` takes some twenty times longer)."""
    parameters = {} if module is None else module._parameters  # noqa: SLF001
    # Of TorchScript it is no mapping.
    return parameters if isinstance(parameters, dict) else dict(parameters.items())


def is_composite(operator: Any) -> bool:
    """Whether an operator makes tensors and is made of others.

    Those that make none tell something of a tensor, and its class may have its own answer.
    """
    made = (str(each.type) for each in operator._schema.returns)  # noqa: SLF001
    return any("Tensor" in each for each in made) and _has_kernel(operator.name(), _COMPOSITE)


def has_kernel_for(operator: Any, device: str) -> bool:
    """Whether an operator has a kernel of its own for a type of device, made of others or not."""
    return _has_kernel(operator.name(), _key_of_device(device))


def run_composite(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel of a composite operator, which calls those that it is made of."""
    return operator._op_dk(_COMPOSITE, *args, **kwargs)  # noqa: SLF001


def pop_dispatch_mode() -> Any:
    """Take the topmost dispatch mode off the thread's stack."""
    return _pop_dispatch_mode(None)


def has_own_operations(cls: type[torch.Tensor]) -> bool:
    """Whether a tensor class says itself what operations do on it."""
    return cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def forward_class(node: Any) -> type | None:
    """The custom `autograd.Function` that made a node, or None."""
    return getattr(type(node), "_forward_cls", None)


def is_reentrant_checkpoint(node: Any) -> bool:
    """Whether a node is that of a reentrant checkpoint: it runs functions and their backward."""
    return forward_class(node) is _checkpoint.CheckpointFunction


def gradient_count(node: Any) -> int:
    """How many gradients an autograd node gets."""
    return len(node._input_metadata)  # noqa: SLF001


def saved_by(node: Any) -> list[tuple[Any, bool]]:
    """What an autograd node keeps for its backward, as it is kept: nothing is unpacked.

    The public `_saved_*` and `saved_tensors` unpack: they call a user's hooks, and let a checkpoint
    run its part of the forward again. To be read while the node is held: it owns what it gives.

    Returns:
        Each tensor, or what a hook of `saved_tensors_hooks` or a checkpoint packed it into, with
        whether it is packed. Nothing where the backward has already run.
    """
    cls = type(node)
    names = _saved_names.get(cls)
    if names is None:
        found = [name for name in dir(cls) if name.startswith("_raw_saved_")]
        names = _saved_names[cls] = tuple(found)
    kept: list[tuple[Any, bool]] = []
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:  # freed
            continue
        each = value if isinstance(value, tuple | list) else (value,)
        kept += [(saved.data, saved.unpack_hook is not None) for saved in each]
    return kept


_saved_names: Final[WeakKeyDictionary[type, tuple[str, ...]]] = WeakKeyDictionary()

node_metadata: Final[Callable[[Any], dict[str, Any]]] = attrgetter("metadata")
"""What anybody noted on an autograd node; it lives as long as the node."""

node_number: Final[Callable[[Any], int]] = methodcaller("_sequence_nr")
"""The sequence number of an autograd node."""
