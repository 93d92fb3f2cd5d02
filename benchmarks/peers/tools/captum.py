"""captum: activations of layers, and gradients with regard to them."""

from __future__ import annotations

from captum._utils.gradient import compute_layer_gradients_and_eval
from captum.attr import LayerActivation

from benchmarks.peers.subject import Subject, Tensors, loss_of
from benchmarks.peers.tool import Capture, Tool


class Captum(Tool):
    name = "captum"
    remark = (
        "captum: gradients by a function of its inside; it differentiates with regard to the "
        "layers alone, not to the parameters, which is less work than the plain run's."
    )

    def outputs(self, subject: Subject) -> Capture:
        paths, layers = list(subject.leaves), list(subject.leaves.values())

        def capture() -> Tensors:
            found = LayerActivation(subject.model, layers).attribute(subject.x)
            return dict(zip(paths, found, strict=True))

        return capture

    def gradients(self, subject: Subject) -> Capture:
        paths, layers = list(subject.leaves), list(subject.leaves.values())

        def capture() -> Tensors:
            found, _ = compute_layer_gradients_and_eval(
                lambda x: loss_of(subject.model(x))[None], layers, subject.x
            )
            return dict(zip(paths, (each for (each,) in found), strict=True))

        return capture


TOOLS = (Captum,)
