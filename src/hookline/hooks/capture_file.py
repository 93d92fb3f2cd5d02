"""Captures on disk, in the format of safetensors: tensors by key, all else as JSON beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from hookline._version import __version__
from hookline.core.calls import NamedRoot, Pass
from hookline.errors import CaptureError
from hookline.hooks.captured import Captured
from hookline.hooks.captured_call import About, CapturedCall
from hookline.hooks.keep import NotCaptured
from hookline.hooks.store import Captures, Store
from hookline.torch_base.containers import OPAQUE, TENSOR, rule_of
from hookline.torch_base.readable import is_sharded
from hookline.torch_base.tree import describe

_FORMAT: Final = "hookline.capture"
_VERSION: Final = 1
_SEQUENCES: Final = {"tuple": tuple, "list": list}
_JSON: Final = (type(None), bool, int, float, str)


def save(captures: Captures, path: str | os.PathLike[str]) -> None:
    """Write captures to a file; see `Captures.save`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    writer = _Writer()
    content = writer.content(captures)
    metadata = {
        "format": _FORMAT,
        "version": str(_VERSION),
        "hookline": __version__,
        "torch": torch.__version__,
        "captures": json.dumps(content),
    }
    # The file that is replaced may be one from which tensors in use are being read.
    target = Path(path)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        save_file(writer.tensors, draft, metadata)
        draft.replace(target)
    except SafetensorError as error:
        msg = f"cannot write captures to {os.fspath(path)!r}: {error}"
        raise CaptureError(msg) from error
    finally:
        draft.unlink(missing_ok=True)


class _Writer:
    """Turns captures into tensors by key, and a description of the rest."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._keys: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()
        self._sources: list[Tensor] = []  # while they live, no other takes their memory

    def content(self, captures: Captures) -> dict[str, Any]:
        roots: dict[int, int] = {}
        names: list[str] = []
        entries: list[dict[str, Any]] = []
        for root, entry in captures.entries():
            if id(root) not in roots:
                roots[id(root)] = len(names)
                names.append(root.name)
            entries.append({"root": roots[id(root)], **self._entry(entry)})
        return {"roots": names, "entries": entries}

    def _entry(self, entry: Captured) -> dict[str, Any]:
        calls = [self._call(call, number) for number, call in enumerate(entry)]
        paths = list(entry.paths)
        return {"name": entry.name, "type": entry.type, "paths": paths, "calls": calls}

    def _call(self, call: CapturedCall, number: int) -> dict[str, Any]:
        values = {
            what: self._node(call.raw(what), f"{call.name}#{number}.{what}") for what in call.kinds
        }
        return {
            "index": call.index,
            "pass": call.pass_number,
            "step": call.step,
            "mode": call.mode,
            "bare": call.bare,
            "values": values,
        }

    def _node(self, value: Any, path: str) -> dict[str, Any]:
        rule = rule_of(type(value))
        if rule is TENSOR:
            return self._tensor(value, path)
        if rule is OPAQUE:
            if type(value) in _JSON:
                return {"plain": value}
            return {
                "absent": value.kind if isinstance(value, NotCaptured) else type(value).__name__
            }
        items = [(suffix, self._node(child, path + suffix)) for suffix, child in rule.items(value)]
        nodes = [node for _, node in items]
        if type(value) in (tuple, list):
            return {type(value).__name__: nodes}
        if type(value) is dict and all(type(key) in _JSON for key in value):
            return {"dict": list(zip(value, nodes, strict=True))}
        return {"fields": items}

    def _tensor(self, tensor: Tensor, path: str) -> dict[str, Any]:
        _check_storable(tensor, path)
        flags = (tensor.is_conj(), tensor.is_neg())
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, *flags)
        key = self._keys.get(same)
        if key is None:
            key = path
            while key in self.tensors:
                key += "'"
            self._keys[same] = key
            self._sources.append(tensor)
            self.tensors[key] = self._own(tensor)
        whole = {"tensor": key}
        return {**whole, "complex": True} if tensor.dtype == torch.complex128 else whole

    def _own(self, tensor: Tensor) -> Tensor:
        """The tensor as safetensors takes it: contiguous, and the only one in its storage."""
        stored = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        if stored.dtype == torch.complex128:
            stored = torch.view_as_real(stored)
        storage = stored.untyped_storage()
        shared = storage.nbytes() != stored.nbytes or storage.data_ptr() in self._storages
        if shared:
            stored = stored.clone()
        self._storages.add(stored.untyped_storage().data_ptr())
        return stored


def _check_storable(tensor: Tensor, path: str) -> None:
    why = None
    if tensor.requires_grad:
        why = "it was captured with its graph (keep_graph=True), which no file can hold"
    elif is_sharded(tensor):
        why = "it is sharded; capture the part in each process with reduce=lambda t: t.to_local()"
    elif type(tensor) not in (Tensor, torch.nn.Parameter):
        why = f"a {type(tensor).__name__} cannot be stored"
    elif tensor.is_meta:
        why = "a tensor on the meta device has no values"
    elif tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        why = "only dense tensors can be stored"
    if why is not None:
        msg = f"cannot save {path} ({describe(tensor)}): {why}"
        raise CaptureError(msg)


def load_capture(
    path: str | os.PathLike[str], device: torch.device | str | int = "cpu"
) -> Captures:
    """Read what `Captures.save` wrote.

    Tuples, lists and dicts come back as they were; what had named fields (a named tuple, a
    `ModelOutput`) as a `types.SimpleNamespace` with these.

    Args:
        path: the file.
        device: where to put the tensors.

    Returns:
        The captures, by path or address.

    Raises:
        CaptureError: the file holds no captures, or is of a later version.
        FileNotFoundError: there is no such file.

    Example:
        >>> import os, tempfile, torch, hookline
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> with hookline.capture(model, "0") as acts:
        ...     _ = model(torch.ones(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     acts.save(os.path.join(folder, "acts.safetensors"))
        ...     hookline.load_capture(os.path.join(folder, "acts.safetensors"))["0"].output
        tensor([1., 1.])
    """
    from safetensors import SafetensorError, safe_open

    where = os.fspath(path)
    try:
        with safe_open(where, framework="pt", device=str(device)) as file:
            content = _content(file.metadata() or {}, where)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        msg = f"{where!r} is no safetensors file that can be read: {error}"
        raise CaptureError(msg) from error
    return Captures(_Reader(tensors).store(content))


def _content(metadata: dict[str, str], where: str) -> dict[str, Any]:
    if metadata.get("format") != _FORMAT:
        msg = f"{where!r} holds no captures of hookline; Captures.save() writes such files"
        raise CaptureError(msg)
    version = metadata.get("version", "")
    if version != str(_VERSION):
        msg = (
            f"{where!r} was written by hookline {metadata.get('hookline')} in version {version} of "
            f"the format; this hookline ({__version__}) reads version {_VERSION}"
        )
        raise CaptureError(msg)
    try:
        return json.loads(metadata["captures"])
    except (KeyError, ValueError) as error:
        msg = f"{where!r} is damaged: its description of the captures cannot be read"
        raise CaptureError(msg) from error


class _Reader:
    """Puts captures together again."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._passes: dict[tuple[int, int], Pass] = {}

    def store(self, content: dict[str, Any]) -> Store:
        store = Store()
        roots = [NamedRoot(name) for name in content["roots"]]
        for saved in content["entries"]:
            root = roots[saved["root"]]
            about = About(saved["name"], saved["type"], tuple(saved["paths"]))
            entry = store.entry(root, about)
            entry.held.extend(self._call(entry, root, call) for call in saved["calls"])
        return store

    def _call(self, entry: Captured, root: NamedRoot, saved: dict[str, Any]) -> CapturedCall:
        running = Pass(root, saved["pass"], saved["step"], saved["mode"], None, 0)
        running = self._passes.setdefault((id(root), running.number), running)
        call = CapturedCall(entry.about, running, saved["index"], bare=saved["bare"])
        call.values.update((what, self._value(node)) for what, node in saved["values"].items())
        return call

    def _value(self, node: dict[str, Any]) -> Any:
        kind, content = next(iter(node.items()))
        if kind == "tensor":
            tensor = self._tensors[content]
            return torch.view_as_complex(tensor) if "complex" in node else tensor
        if kind in ("tuple", "list"):
            return _SEQUENCES[kind]([self._value(inner) for inner in content])
        if kind in ("dict", "fields"):
            named = {key: self._value(inner) for key, inner in content}
            return named if kind == "dict" else _with_fields(named)
        return NotCaptured(content) if kind == "absent" else content


def _with_fields(fields: dict[str, Any]) -> Any:
    if all(suffix.startswith(".") for suffix in fields):
        return SimpleNamespace(**{suffix[1:]: value for suffix, value in fields.items()})
    if list(fields) == [f"[{place}]" for place in range(len(fields))]:
        return list(fields.values())
    return fields
