"""The walk finds just the nodes that autograd then runs, in the order in which it runs them."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd.graph import get_gradient_edge

from hookline.core.calls import Call
from hookline.torch_base.marks import Role, mark
from hookline.torch_base.walk import visits

# A busy machine is no reason to fail.
patient = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

OPERATIONS = (
    torch.add,
    torch.mul,
    torch.sub,
    lambda a, b: (a * b).unbind()[0].expand(2),
    lambda a, b: torch.cat([a, b])[1:3],
    lambda a, b: a.detach() * b,
    lambda a, b: a.clone().add_(b),
)


def build(seed, size):
    """A random graph: leaves, of which some need no gradient, and tensors made from them."""
    chance = random.Random(seed)
    leaves = [torch.ones(2, requires_grad=n != 2) for n in range(4)]
    made = list(leaves)
    for _ in range(size):
        operation = chance.choice(OPERATIONS)
        made.append(operation(chance.choice(made), chance.choice(made)))
    with_graph = [tensor for tensor in made if tensor.grad_fn is not None]
    return [leaf for leaf in leaves if leaf.requires_grad], with_graph, chance


def reachable(tensors):
    """All nodes below some tensors, by plain recursion on edges."""
    nodes, todo = {}, [tensor.grad_fn for tensor in tensors]
    while todo:
        node = todo.pop()
        if node is not None and id(node) not in nodes:
            nodes[id(node)] = node
            todo += [following for following, _ in node.next_functions]
    return list(nodes.values())


def executed(outputs, work):
    """The nodes that autograd runs, in order, without those that only accumulate."""
    ran = []
    handles = [
        node.register_prehook(lambda _, node=node: ran.append(node))
        for node in reachable(outputs)
        if node.name() != "torch::autograd::AccumulateGrad"
    ]
    work()
    for handle in handles:
        handle.remove()
    return ran


def planned(outputs, inputs):
    """The nodes that the walk finds, in the order in which they shall run."""
    found = visits(outputs, inputs)
    assert len({node for _, node, _, _ in found}) == len(found)
    return [node for _, node, _, _ in sorted(found, key=lambda visit: -visit[0])]


@patient
@given(seed=st.integers(0, 10_000), size=st.integers(1, 25))
def test_a_whole_backward(seed, size):
    """`backward()` runs the nodes found, in descending order of their numbers."""
    _, made, chance = build(seed, size)
    if not made:
        return
    outputs = chance.sample(made, chance.randint(1, min(3, len(made))))
    expected = planned(outputs, None)

    def work():
        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs], retain_graph=True)

    assert executed(outputs, work) == expected


@patient
@given(seed=st.integers(0, 10_000), size=st.integers(1, 25))
def test_a_partial_backward(seed, size):
    """With `inputs=`, leaves or tensors in between, only the way to them runs."""
    leaves, made, chance = build(seed, size)
    if not made:
        return
    outputs = [made[-1]]
    candidates = [t for t in leaves + made[:-1] if t is not made[-1]]
    inputs = chance.sample(candidates, chance.randint(1, min(3, len(candidates))))
    expected = planned(outputs, inputs)

    def work():
        torch.autograd.grad(outputs, inputs, [torch.ones(2)], allow_unused=True, retain_graph=True)

    assert executed(outputs, work) == expected


def test_edges_stand_for_tensors():
    """Outputs and inputs may be gradient edges."""
    x = torch.ones(2, requires_grad=True)
    middle = x * 2
    out = middle.exp()
    edges = [get_gradient_edge(out)], [get_gradient_edge(middle)]

    assert planned(edges[0], None) == [out.grad_fn, middle.grad_fn]
    assert planned(*edges) == [out.grad_fn]
    assert planned(edges[0], [get_gradient_edge(x)]) == [out.grad_fn, middle.grad_fn]


def test_a_leaf_has_nothing_to_run():
    """A backward that starts from a leaf, or asks for what is not on the way, runs no node."""
    x, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    out = x * 2

    assert visits([x], None) == []
    assert visits([out], [other]) == []
    assert visits([out], [out]) == []


def test_a_tensor_that_needs_no_gradient_may_be_asked_for():
    """torch itself refuses it with its own error; the walk does not get in the way."""
    out = torch.ones(2, requires_grad=True) * 2

    assert visits([out], [torch.ones(2)]) == []
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(out.sum(), torch.ones(2))


def test_a_deep_graph_needs_no_deep_recursion():
    """A chain of many thousand nodes is walked, in a whole and in a partial run."""
    x = torch.ones(1, requires_grad=True)
    out = x
    for _ in range(20_000):
        out = out + 1

    assert len(visits([out], None)) == 20_000
    assert len(visits([out], [x])) == 20_000


def test_marks_are_found_and_tell_the_thread():
    """A visit carries the marks of its node; unmarked nodes below are of the same thread."""
    x = torch.ones(2, requires_grad=True)
    middle = x * 2
    out = middle.exp()
    call = Call()
    call.thread = 7
    mark(middle.grad_fn, middle, call, Role.OUTPUT, 0)
    last, first = sorted(visits([out], None), key=lambda visit: -visit[0])

    _, node, marks, thread = last
    assert (node, list(marks), thread) == (out.grad_fn, [], None)
    _, node, marks, thread = first
    assert (node, [found.call for found in marks], thread) == (middle.grad_fn, [call], 7)
