"""``torch.compile(module, backend="anvil")``: values, side effects, gradients, and what it says when it cannot."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny_models import (
    assert_same_function,
    one_thread,  # noqa: F401
    randomise,
    tiny_llama,
)
from torch import nn

import anvil.frontend.dynamo as dynamo
from anvil.errors import InputError, UnsupportedError

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, dynamic=None, **options):
    return torch.compile(function, backend=dynamo.anvil, dynamic=dynamic, options=options or None)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 9, bias=False), nn.Linear(4, 9), nn.Linear(9, 4)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.fixture
def mlp():
    return randomise(MLP())


def test_an_mlp_gives_the_eager_values_at_any_size(mlp):
    fast = compiled(mlp, dynamic=True)
    with torch.no_grad():
        for tokens in (3, 7, 1):
            x = torch.randn(2, tokens, 4)
            assert_same_function(fast(x), mlp(x))


@pytest.mark.parametrize("mask", ["none", "causal", "random"])
def test_a_decoder_layer_gives_the_eager_values(mask):
    model = tiny_llama()
    layer, rotary = model.model.layers[0], model.model.rotary_emb
    fast = compiled(layer, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 8):
            x = torch.randn(2, tokens, 32)
            visible = torch.ones(tokens, tokens, dtype=torch.bool).tril() if mask == "causal" else random_mask(tokens)
            given = None if mask == "none" else visible[None, None].expand(2, 1, -1, -1)
            options = {"position_embeddings": rotary(x, torch.arange(tokens)[None]), "attention_mask": given}
            assert_same_function(fast(x, **options), layer(x, **options))


def random_mask(tokens):
    """One query sees nothing."""
    visible = torch.rand(tokens, tokens, generator=torch.Generator().manual_seed(tokens)) > 0.5
    visible[2] = False
    return visible


def test_the_name_anvil_is_enough():
    assert "anvil" in torch._dynamo.list_backends()
    assert_same_function(torch.compile(lambda x: x + 1, backend="anvil")(X), X + 1)


def test_sizes_are_named_and_not_specialised(mlp):
    fast = compiled(mlp, dynamic=True)
    counter = torch._dynamo.utils.counters
    with torch.no_grad():
        fast(torch.randn(2, 5, 4))
        graphs = counter["stats"]["unique_graphs"]
        fast(torch.randn(3, 9, 4))
    assert counter["stats"]["unique_graphs"] == graphs


# -- side effects ----------------------------------------------------------------------------------------------------


def check_side_effects(function, *arguments):
    """Results and arguments after the call are what eager leaves."""
    ours, eager = [[argument.clone() for argument in arguments] for _ in range(2)]
    got, want = compiled(function)(*ours), function(*eager)
    for mine, theirs in zip(ours, eager, strict=True):
        assert_same_function(mine, theirs)
    for mine, theirs in zip(got, want, strict=True):
        assert_same_function(mine, theirs)
    return ours, got


def test_work_in_place_on_intermediates():
    def function(x):
        y = x * 2
        y[..., 1] = 3.0
        y[:, 0].mul_(0.5)
        return (y.relu_() + y,)

    check_side_effects(function, X)


def test_a_changed_argument_is_changed():
    def function(x, y):
        x.add_(y)
        y[0] = x[1]
        return (x * y,)

    check_side_effects(function, X, X + 1)


def test_an_argument_changed_through_a_view_is_changed():
    def function(x):
        x.view(-1)[3:9].mul_(2)
        return (x.sum(-1),)

    check_side_effects(function, X)


def test_a_returned_argument_is_the_argument():
    def function(x):
        x.mul_(3)
        return x, x + 1

    (x,), (first, _) = check_side_effects(function, X)
    assert first is x


def test_results_that_share_memory_share_it():
    def function(x):
        y = x * 2
        return y, y.view(-1)

    _, (whole, flat) = check_side_effects(function, X)
    whole.zero_()
    assert not flat.any()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps += 1
        return x * self.steps


def test_a_buffer_counts_on():
    module = Counter()
    fast = compiled(module)
    for step in (1, 2, 3):
        assert_same_function(fast(X), X * step)
    assert module.steps.item() == 3


# -- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_changed_in_place_counts(mlp):
    fast = compiled(mlp)
    with torch.no_grad():
        before = fast(X)
        mlp.down.weight.add_(1.0)
        assert not torch.allclose(fast(X), before)
        assert_same_function(fast(X), mlp(X))


def test_a_replaced_weight_counts(mlp):
    fast = compiled(mlp)
    with torch.no_grad():
        fast(X)
        mlp.down = nn.Linear(9, 4)
        assert_same_function(fast(X), mlp(X))


def test_weights_are_packed_once(mlp, monkeypatch):
    import anvil.api

    calls = []
    original = anvil.api.compile_program
    monkeypatch.setattr(anvil.api, "compile_program", lambda *a, **k: calls.append(1) or original(*a, **k))
    fast = compiled(mlp)
    with torch.no_grad():
        for _ in range(3):
            fast(X)
    assert len(calls) == 1


# -- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_eager(mlp):
    fast = compiled(mlp)
    found = []
    for function in (fast, mlp):
        x = X.clone().requires_grad_()
        (function(x) ** 2).sum().backward()
        found.append([x.grad, *(parameter.grad.clone() for parameter in mlp.parameters())])
        mlp.zero_grad()
    for mine, theirs in zip(*found, strict=True):
        assert_same_function(mine, theirs)


def test_a_step_of_training_is_seen(mlp):
    fast = compiled(mlp)
    optimiser = torch.optim.SGD(mlp.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = (fast(X) ** 2).mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[0] > losses[1] > losses[2]


def test_integers_beside_floats_have_no_gradient():
    def function(x):
        return x * 2, x.argmax(-1)

    x = X.clone().requires_grad_()
    doubled, chosen = compiled(function)(x)
    doubled.sum().backward()
    assert torch.equal(x.grad, torch.full_like(X, 2))
    assert torch.equal(chosen, X.argmax(-1))


def test_a_changed_argument_while_gradients_are_recorded_is_refused():
    def function(x, w):
        x.add_(1)
        return x * w

    with pytest.raises(UnsupportedError, match=r"x is changed in place while gradients are recorded"):
        compiled(function)(X.clone(), torch.ones(4, requires_grad=True))


# -- what is not covered ---------------------------------------------------------------------------------------------


def uncovered(x):
    y = x + 1
    return torch.special.bessel_j0(y * x)


def uncovered_with_a_check(x):
    return torch.linalg.inv(x @ x.transpose(1, 2) + torch.eye(3))


def test_an_uncovered_operation_is_named_with_arguments_and_line():
    with pytest.raises(UnsupportedError) as refusal:
        compiled(uncovered)(X)
    message = str(refusal.value)
    assert "aten.special_bessel_j0" in message
    assert "f32[2, 3, 4]" in message
    assert "test_frontend_dynamo.py:" in message
    assert "return torch.special.bessel_j0(y * x)" in message


def test_an_operation_that_raises_on_bad_values_is_named():
    with pytest.raises(UnsupportedError, match=r"_linalg_check_errors.*dynamo\.py:\d+: return torch\.linalg\.inv"):
        compiled(uncovered_with_a_check)(X)


def test_fallback_runs_eager_and_says_so():
    x = torch.randn(2, 3, 4)
    fast = compiled(uncovered, fallback=True)
    with pytest.warns(UserWarning, match=r"anvil runs this graph in eager PyTorch: .*bessel_j0"):
        got = fast(x)
    assert_same_function(got, uncovered(x))
    assert_same_function(fast(x), uncovered(x))  # no second warning: warnings are errors here


def test_fallback_keeps_side_effects():
    def function(x):
        x.add_(1)
        return (torch.special.bessel_j0(x),)

    ours, eager = X.clone(), X.clone()
    with pytest.warns(UserWarning, match="eager PyTorch"):
        got = compiled(function, fallback=True)(ours)
    assert_same_function(got[0], function(eager)[0])
    assert torch.equal(ours, eager)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fall_back": True}, "option 'fall_back', expected one of target, quant, attention, threads, fallback"),
        ({"threads": "two"}, "option threads='two', expected a int"),
        ({"target": "pdp11"}, "pdp11"),
    ],
)
def test_unusable_options_are_refused_when_called(options, message):
    fast = compiled(lambda x: x + 1, **options)
    with pytest.raises(InputError, match=message):
        fast(X)


def test_modes_are_refused():
    fast = torch.compile(lambda x: x + 1, backend=dynamo.anvil, mode="max-autotune")
    with pytest.raises(InputError, match="mode='max-autotune', expected none"):
        fast(X)


def test_threads_change_no_bit(mlp):
    with torch.no_grad():
        one = compiled(mlp, threads=1)(X)
        torch._dynamo.reset()
        assert torch.equal(compiled(mlp, threads=2)(X), one)


def test_results_that_need_no_work_are_handed_through():
    def function(x, n):
        return x, n + 1, None, x.shape[0]

    first, number, nothing, size = compiled(function, dynamic=True)(X, 4)
    assert first is X
    assert (number, nothing, size) == (5, None, 2)


def test_an_integer_that_is_no_size_is_named():
    def function(x, n):
        return torch.arange(n) + x

    with pytest.raises(
        UnsupportedError, match=r"the integer argument .* is the size of no tensor, used by aten\.arange"
    ):
        compiled(function, dynamic=True)(torch.ones(1), 5)
