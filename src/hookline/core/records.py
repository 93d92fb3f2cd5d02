"""What was measured, as plain rows: the shape in which hooks hand it to reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What has the numbers of a row: a module or function, in one mode."""

    root: str
    """The topmost module that contains it, by class name; `""` outside any module."""
    path: str | None
    """The module's path below the root, `""` for the root itself.

    Of a function: the path of the module that called it, `None` outside any module.
    """
    type: str
    """The class name of the module; of a function, what is known of its kind, else `""`."""
    level: str
    """`"module"` or `"function"`."""
    mode: str
    """`"train"`, `"eval"` or `"no_grad"`."""


@dataclass(frozen=True, slots=True)
class DirectedRow(Row):
    """What has the numbers of a row, and the direction in which they were measured."""

    direction: str
    """`"forward"`, `"backward"`, or `"recompute"`: a forward repeated by checkpointing."""


@dataclass(frozen=True, slots=True)
class TimeRow(DirectedRow):
    """The time of all calls of one module or function, in one mode and direction.

    All times are in seconds.

    Example:
        >>> row = TimeRow("Net", "head", "Linear", "module", "train", "forward", 1, *[0.5] * 5)
        >>> row.calls, row.total_time
        (1, 0.5)
    """

    calls: int
    """How many calls the times below are of."""
    self_time: float
    """What all calls took together, without the calls made inside them."""
    total_time: float
    """What all calls took together, the calls made inside them included."""
    minimum: float
    """The shortest call."""
    median: float
    """The call in the middle."""
    maximum: float
    """The longest call."""
    name: str = ""
    """The name of the function; `""` for a module."""
    clock: str = "host"
    """`"host"`, or `"device"` where device events were timed."""


@dataclass(frozen=True, slots=True)
class FlopRow(DirectedRow):
    """The FLOPs of all calls of one module or function, in one mode and direction.

    A multiplication and the addition that goes with it count as two. What ran outside of every
    call stands in rows of its own: no root, no path, no calls.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train", "forward")
        >>> row = FlopRow(*where, 2, 640, 640, (("aten.addmm", 640),))
        >>> row.self_flops, dict(row.operators)["aten.addmm"]
        (640, 640)
    """

    calls: int
    """How many calls the numbers below are of; 0 for what ran outside of every call."""
    self_flops: int
    """What all calls made together, without the calls inside them."""
    total_flops: int
    """What all calls made together, the calls inside them included."""
    operators: tuple[tuple[str, int], ...]
    """The operators that make `self_flops`, such as `aten.addmm`, each with its share."""
    name: str = ""
    """The name of the function; `""` for a module."""


@dataclass(frozen=True, slots=True)
class UncountedRow(DirectedRow):
    """An operator that does matrix work, or may do it, and whose FLOPs are not known.

    Example:
        >>> where = ("Net", "head", "Bilinear", "module", "train", "forward")
        >>> row = UncountedRow(*where, "aten._trilinear", 3, "no formula")
        >>> row.operator, row.calls
        ('aten._trilinear', 3)
    """

    operator: str
    """The operator, such as `aten._trilinear`."""
    calls: int
    """How often it ran."""
    reason: str
    """`"no formula"`, `"not dense"` (sparse or nested), or what went wrong in the formula."""
    name: str = ""
    """The name of the function that ran it; `""` for a module."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A module or function that was watched and whose hooks never ran, with the likely cause.

    | cause | what happened |
    |---|---|
    | `no forward` | it is a container, which is never called |
    | `TorchScript` | it runs outside of Python |
    | `replaced` | it is not in the model any more, or not where it was |
    | `compiled` | it is a part of a compiled region, which is one call |
    | `fused` | a function uses its parameters, as that of `nn.MultiheadAttention` does |
    | `bypassed` | it was used without being called, such as by `module.forward(x)` |
    | `no gradient` | it was called, but its hooks run in the backward, and none came |
    | `not called` | its parent ran and did not call it; of a function: its module did not |
    | `never called` | nothing is known of a call |

    Example:
        >>> row = Silent("layers", "ModuleList", "no forward", "watch the modules in it", ("T",))
        >>> print(row)
        layers (ModuleList): no forward; watch the modules in it
    """

    path: str
    """The path of the module, or the address of the function."""
    type: str
    """The class name of the module; for a function, that of the module that would call it."""
    cause: str
    """One of the above: what most likely happened."""
    advice: str
    """What is known of it, and what to do."""
    hooks: tuple[str, ...]
    """The names of the hooks that never ran there."""
    root: str = ""
    """The name of the model's root."""

    def __str__(self) -> str:
        return f"{self.path or 'the model'} ({self.type}): {self.cause}; {self.advice}"


@dataclass(frozen=True, slots=True)
class NonFiniteRow(DirectedRow):
    """A module or function where NaN or Inf was seen: the first time in full, and how often.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train", "forward")
        >>> row = NonFiniteRow(
        ...     *where, "producer", "", "output", 0, 12, 12, 3, 0, (4, 10), "float32"
        ... )
        >>> row.path, row.verdict, row.nan
        ('head', 'producer', 3)
    """

    verdict: str
    """`"producer"`: what it was given and its parameters were finite; `"propagator"`: it was given
    something that was not, or a call inside it made it; `"bad parameter"`: a parameter or buffer is
    not finite."""
    cause: str
    """Of a propagator, the input that was not finite, or the call that made it; of a bad parameter,
    its name; `""` for a producer."""
    leaf: str
    """The tensor: `output.hidden_states[2]`, `grad_output[0]`, `grad_input[0]`, `weight.grad`."""
    index: int
    """The call index in the pass."""
    pass_number: int
    """The pass of the root."""
    step: int
    """The optimizer steps before it."""
    nan: int | None
    """How many values were NaN; `None` where the tensor was gone when this was found out."""
    inf: int | None
    """How many values were infinite; `None` likewise."""
    shape: tuple[int, ...]
    """The tensor's shape."""
    dtype: str
    """Its dtype, such as `"float16"`."""
    position: tuple[int, ...] | None = None
    """The index of the first value that is not finite, where it is known."""
    times: int = 1
    """In how many calls this was seen since."""
    name: str = ""
    """The name of the function; `""` for a module."""
    scale: float | None = None
    """The loss scale, where gradients are known to be scaled (AMP)."""
    skipped: bool | None = None
    """Whether the scaler left out the optimizer step, as it should; `None` where that is open."""


@dataclass(frozen=True, slots=True)
class StatsRow(DirectedRow):
    """The numbers in one tensor of a module or function, over all calls that were looked at.

    Values that are not finite are counted, and left out of everything else; where there are no
    others, that is NaN.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train", "forward", "output")
        >>> row = StatsRow(*where, 2, 80, 0.5, 1.0, -1.0, 2.0, 2.0, 10.0, 0.25, 0, 0)
        >>> row.leaf, row.mean
        ('output', 0.5)
    """

    leaf: str
    """The tensor: `output.hidden_states[2]`, `grad_output[0]`."""
    calls: int
    """In how many calls it was looked at."""
    count: int
    """How many finite values there were in all."""
    mean: float
    """Their mean."""
    std: float
    """Their standard deviation about that mean (divided by the count, not by one less)."""
    minimum: float
    """The smallest."""
    maximum: float
    """The largest."""
    abs_max: float
    """The largest magnitude."""
    norm: float
    """The mean over calls of the tensor's L2 norm."""
    zero_share: float
    """Which share of the finite values is exactly zero."""
    nan: int
    """How many values were NaN."""
    inf: int
    """How many values were infinite."""
    histogram: tuple[int, ...] = ()
    """Magnitudes of a sample, counted by powers of two; the bins are in `core.magnitudes`."""
    name: str = ""
    """The name of the function; `""` for a module."""
    scale: float = 1.0
    """The loss scale by which gradients were divided; the latest."""


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter over all optimizer steps that were looked at; L2 norms.

    Example:
        >>> row = ParameterRow("Net", "head.weight", (), (10, 4), "SGD", 3, *[0.5] * 7)
        >>> row.name, row.steps
        ('head.weight', 3)
    """

    root: str
    """The topmost module that contains it, by class name."""
    name: str
    """Its name, as in `named_parameters()`."""
    ties: tuple[str, ...]
    """Its other names, where it is shared."""
    shape: tuple[int, ...]
    """Its shape; where it is sharded, that of the whole."""
    optimizer: str
    """The class name of the optimizer that updates it."""
    steps: int
    """How many optimizer steps were looked at; the parameter had a gradient in each of them."""
    weight_norm: float
    """The norm after the latest of them."""
    grad_norm: float
    """The mean norm of the gradient that the optimizer used, the loss scale taken out."""
    grad_norm_max: float
    """The largest."""
    grad_norm_last: float
    """The latest."""
    update_ratio: float
    """The mean of ‖Δw‖ / ‖w‖ over a step; steps that began with ‖w‖ = 0 are left out."""
    update_ratio_max: float
    """The largest."""
    update_ratio_last: float
    """The latest."""
    nonfinite: int = 0
    """In how many of the steps the gradient was not finite; they count nowhere else."""
    scale: float = 1.0
    """The loss scale that was taken out; 1 where the scaler had done so before."""
    note: str = ""
    """What is special: `sharded` (numbers of this process's part), `empty`, `estimated`."""


@dataclass(frozen=True, slots=True)
class MemoryRow(Row):
    """What one module or function holds in memory after its forward, in one mode; in bytes.

    What does not say otherwise is of all its calls in one pass, added up as each of them ended: the
    largest pass.

    Example:
        >>> where = ("Net", "head", "Linear", "module", "train")
        >>> row = MemoryRow(*where, 6, 3, 80, 400, 400, 40, 200, 80, 400)
        >>> row.path, row.saved_bytes
        ('head', 400)
    """

    calls: int
    """How many calls there were in all."""
    passes: int
    """In how many passes it was called."""
    output_bytes: int
    """The storages of its outputs, but those that came with its inputs."""
    saved_bytes: int
    """The storages that are kept for its backward, calls inside included; each belongs to the call
    that kept it first. Parameters and buffers are left out."""
    self_saved_bytes: int
    """That without what the calls inside keep."""
    output_bytes_call: int
    """The outputs of one call: the largest."""
    saved_bytes_call: int
    """What is kept for the backward of one call, calls inside included: the largest."""
    output_bytes_last: int
    """The outputs of the latest pass."""
    saved_bytes_last: int
    """What is kept for the backward of the latest pass."""
    packed: int = 0
    """How many of the tensors that are kept went through `saved_tensors_hooks`, as those in a
    checkpoint do; they are not in `saved_bytes`."""
    packed_bytes: int = 0
    """The storages of the tensors into which these were packed, as far as they can be seen."""
    parameter_bytes: int | None = None
    """The module's parameters now, modules inside included; `None` if it is gone, and for
    functions."""
    gradient_bytes: int | None = None
    """The gradients that are at these parameters now; `None` as above, and until a recorded run
    ends."""
    allocated_bytes: int | None = None
    """By how much what the device's allocator has given out grew in one call: the largest. `None`
    where no device that tells is in use."""
    peak_bytes: int | None = None
    """How far it rose above what it was at the begin of one call: the largest. `None` where it was
    not asked for."""
    name: str = ""
    """The name of the function; `""` for a module."""
