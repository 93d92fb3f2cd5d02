"""What captures hold, and that they hold no more than they may."""

import gc
from collections import Counter

import pytest
import torch
from torch import nn

from hookline import CaptureError, CaptureLimitError, HooklineError, capture
from hookline.function_hooks import CaptureHook as FunctionCaptureHook
from hookline.hooks import store

ROW = 4 * 10  # the bytes of ten float32


def model_and_input():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(inplace=True), nn.Linear(10, 10))
    return model, torch.randn(1, 10)


def held_by_hand(acts):
    """The bytes of all tensors that can be read."""
    tensors = [t for entry in acts.values() for call in entry for t in call.leaves().values()]
    tensors += [t for entry in acts.values() for t in entry.grads if t is not None]
    return sum(t.numel() * t.element_size() for t in tensors)


def test_bytes_held_are_counted():
    model, x = model_and_input()
    with capture(model, "*") as acts:
        model(x)
        assert acts.nbytes == 3 * ROW
        model(x).sum().backward()

    assert acts.nbytes == held_by_hand(acts) == (6 + 3) * ROW
    acts.clear()
    assert acts.nbytes == 0


def test_r10_going_beyond_the_limit_is_an_error_that_says_what_to_do():
    model, x = model_and_input()
    with capture(model, "*", what="output", limit=2 * ROW) as acts:
        text = (
            r"capturing '2', call 0 .* takes 120 bytes, more than limit=80; .*overflow=\"oldest\""
        )
        with pytest.raises(CaptureLimitError, match=text) as caught:
            model(x)

    assert isinstance(caught.value, HooklineError)
    assert isinstance(caught.value, MemoryError)
    assert list(acts) == ["0", "1", "2"]
    assert [len(entry) for entry in acts.values()] == [1, 1, 0]  # what fits stays
    assert acts.nbytes == 2 * ROW


def test_a_gradient_may_go_beyond_the_limit_too():
    model, x = model_and_input()
    with capture(model, "*", limit=4 * ROW) as acts:
        loss = model(x).sum()
        with pytest.raises(CaptureLimitError, match="capturing '1'"):
            loss.backward()

    assert acts.nbytes <= 4 * ROW


def test_the_oldest_calls_give_way_on_request():
    model, x = model_and_input()
    with capture(model, "0", "2", what="output", limit=5 * ROW, overflow="oldest") as acts:
        outs = [model(x * n) for n in range(4)]

    assert acts.nbytes == 5 * ROW
    assert acts.dropped == 3
    assert [len(acts["0"]), len(acts["2"])] == [2, 3]
    assert all(map(torch.equal, acts["2"].outputs, outs[1:]))
    assert acts["0"].first.pass_number == acts["0"].last.pass_number - 1


def test_gradients_count_for_the_call_that_they_belong_to():
    model, x = model_and_input()
    with capture(model, "*", limit=7 * ROW, overflow="oldest") as acts:
        for _ in range(5):
            model(x).sum().backward()
            assert acts.nbytes == held_by_hand(acts) <= 7 * ROW

    assert torch.equal(acts["2"].last.grad, torch.ones(1, 10))


def test_a_call_that_is_larger_than_the_limit_is_an_error_all_the_same():
    model, x = model_and_input()
    with (
        capture(model, "0", limit=ROW - 1, overflow="oldest"),
        pytest.raises(CaptureLimitError, match="takes 40 bytes, more than limit=39"),
    ):
        model(x)


def test_when_all_calls_were_dropped_reading_says_so():
    model, x = model_and_input()
    with capture(model, "*", what="output", limit=ROW, overflow="oldest") as acts:
        model(x)

    assert torch.equal(acts["2"].output, model(x))
    with pytest.raises(CaptureError, match="no call of '0' is held any more: they were dropped"):
        _ = acts["0"].output


@pytest.mark.parametrize("calls", ["first", "last"])
def test_the_limit_counts_only_the_call_that_is_held(calls):
    model, x = model_and_input()
    with capture(model, "*", calls=calls, limit=6 * ROW) as acts:
        for _ in range(5):
            model(x).sum().backward()
            assert acts.nbytes == held_by_hand(acts) == 6 * ROW


def live_tensors():
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def assert_flat(seen):
    """What is held stays the same; fewer tensors may live, as others let go of theirs meanwhile."""
    held, alive = zip(*seen, strict=True)
    assert len(set(held)) == 1, seen
    assert list(alive) == sorted(alive, reverse=True), seen


@pytest.mark.parametrize(
    "options",
    [
        {"calls": "last", "what": ("input", "output", "grad", "grad_input")},
        {"calls": "first"},
        {"limit": 40 * ROW, "overflow": "oldest", "what": ("input", "output", "grad")},
        {"calls": "last", "reduce": torch.mean},
        {"calls": "last", "copy": False},
        {"calls": "last", "keep_graph": True, "what": "output"},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_r5_memory_is_flat_with_bounded_captures(options):
    """2,000 passes: neither the bytes held nor the number of live tensors grows."""
    model, x = model_and_input()
    x.requires_grad_()
    seen = []
    with capture(model, "**", **options) as acts:
        for number in range(2000):
            model(x).sum().backward()
            if number in (100, 1000, 1999):
                seen.append((acts.nbytes, live_tensors()))

    assert_flat(seen)
    assert min(seen[0]) > 0


def test_r5_memory_is_flat_for_functions():
    x = torch.randn(10, requires_grad=True)
    seen = []
    with FunctionCaptureHook(calls="last") as hook:
        for number in range(2000):
            (x * 2).relu().sum().backward()
            if number in (100, 1000, 1999):
                seen.append((hook.captured.nbytes, live_tensors()))

    assert_flat(seen)
    assert seen[0][0] == 2 * (2 * ROW + 4)


def test_names_are_made_once_for_all_that_is_read(monkeypatch):
    """Reading many captures is linear in their number."""
    made = []
    monkeypatch.setattr(store, "Counter", lambda names: made.append(1) or Counter(names))
    model = nn.Sequential(*[nn.Identity() for _ in range(20)])
    with capture(model, "*") as acts:
        model(torch.ones(2))
    assert [len(acts[str(number)]) for number in range(20)] == [1] * 20
    assert list(acts) == [str(number) for number in range(20)]
    assert len(made) == 1


def test_names_are_those_of_what_is_held_now():
    """Also where, after all was cleared, there are as many as before, and while a model runs."""
    model, x = nn.Sequential(nn.Identity(), nn.Identity()), torch.ones(2)
    with capture(model) as acts:
        model[0](x)
        assert list(acts) == ["0"]
        model[1](x)
        assert list(acts) == ["0", "1"]
        acts.clear()
        assert list(acts) == []
        model[1](x)
        assert list(acts) == ["1"]
        acts.clear()
        model[0](x)
        assert "1" not in acts
        assert torch.equal(acts["0"].output, x)
