"""An index outside what it indexes is an error, as in PyTorch; memory outside is never read."""

from __future__ import annotations

import pytest
import torch
from lowered import Lowered, compiled
from tiny_models import SIZES, tiny_llama

import anvil
from anvil.errors import IndexRangeError

X = torch.arange(12.0).reshape(4, 3)
#: name: function of a tensor [N, 3] and an index, indices that exist, indices that do not
CASES = {
    "gather": (lambda x, i: x.gather(0, i), [[3, 0, 2]], [[[4, 0, 0]], [[0, 0, -1]]]),
    "index_select": (lambda x, i: x.index_select(1, i), [2, 0], [[3, 0], [0, -1], [100, 0], [-(2**62), 0]]),
    "rows": (lambda x, i: x[i], [-4, 3], [[0, 4], [-5, 0]]),
    "columns": (lambda x, i: x[:, i] * 2, [-3, 2], [[0, 3], [-4, 0]]),
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), [3, 0], [[4, 0], [0, -1]]),
    "computed": (lambda x, i: x[i * 2 - 1] + 1, [2, 1], [[0, 3], [-2, 1]]),
    "computed by a reduction": (lambda x, i: x[i.sum(0, keepdim=True)], [2, 1], [[2, 2], [-3, -2]]),
    "rows reduced": (lambda x, i: x.gather(1, (x[i] > 4).sum(1, keepdim=True) - 1), [2, 3, 1], [[0, 3], [3, 0]]),
    "moved by positions": (lambda x, i: x[i[:, None] + torch.arange(2)], [2, 0], [[3, 0], [0, 2**40]]),
    "a view": (lambda x, i: x.t()[i[None].expand(2, -1)], [2, -3], [[3, 0], [0, -4]]),
    "index_add": (lambda x, i: x.index_add(0, i, i[:, None].float().expand(-1, 3)), [3, 0, 1], [[0, 4, 1], [0, -1, 2]]),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(())), [3, 0, -4], [[0, 4, 1], [-5, 0, 2]]),
    "scatter": (lambda x, i: x.scatter(0, i[:, None], 1.0), [3, 0, 1], [[0, 4, 1], [0, -1, 2]]),
}


def program(name: str, **options) -> Lowered:
    function, *_ = CASES[name]
    example = torch.zeros((3, 3) if name == "gather" else 3, dtype=torch.int64)
    return compiled(function, torch.zeros(5, 3), example, dynamic=({0: "N"}, {0: "M"}), **options)


@pytest.mark.parametrize("name", CASES)
def test_an_index_out_of_range_is_an_error(name: str) -> None:
    function, good, bad = CASES[name]
    lowered = program(name, guard=True, isolated=True)
    good = torch.tensor(good)
    assert lowered(X, good).equal(function(X, good))
    for indices in map(torch.tensor, bad):
        with pytest.raises((IndexError, RuntimeError)):
            function(X, indices)
        with pytest.raises(
            IndexRangeError, match=r"test_lower_index_errors.py.*is out of range, expected -?\w+ <= index <"
        ):
            lowered(X, indices, threads=2)
    assert lowered(X, good).equal(function(X, good)), "an error leaves nothing behind"
    if name not in ("computed by a reduction", "a view"):
        assert lowered(X, good[:0]).shape == function(X, good[:0]).shape, "no index is no error"


@pytest.mark.parametrize("target", ["aarch64-neon", "riscv64-rvv-vlen128"])
def test_an_index_out_of_range_is_an_error_elsewhere_too(target: str) -> None:
    lowered = program("computed", target=target)
    with pytest.raises(IndexRangeError):
        lowered(X, torch.tensor([0, 3]))


def test_one_index_tensor_is_checked_once() -> None:
    def function(x, i):
        return x[i] + x.index_select(0, i) + (x * 2)[i]

    lowered = compiled(function, torch.zeros(5, 3), torch.zeros(3, dtype=torch.int64), dynamic=({0: "N"}, {0: "M"}))
    assert len(lowered.plan.checks) == 2, "once with negative indices and once without"
    with pytest.raises(IndexRangeError, match="index_select"):
        lowered(X, torch.tensor([-1, 0]))


class Shifted(torch.nn.Module):
    """A language model that looks its ids up in a second table too, which begins at id 3."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama(tie_word_embeddings=False)
        self.extra = torch.nn.Parameter(torch.randn(SIZES["vocab_size"], SIZES["vocab_size"]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        own = self.model(input_ids=ids, use_cache=False).logits
        return own + torch.nn.functional.embedding(ids - 3, self.extra)


def test_a_language_model_refuses_in_every_step() -> None:
    model = anvil.compile(Shifted().eval(), threads=1, context=16)
    assert [len(plan.plan.checks) for plan in model.plans.each().values()] == [1, 1, 1], "ids themselves are trusted"
    model.prefill([3, 7, 60])
    model.decode(5)
    for wrong in (lambda: model.logits([4, 2]), lambda: model.prefill([4, 2]), lambda: model.decode(2)):
        with pytest.raises(IndexRangeError, match="extra is out of range"):
            wrong()


def test_the_compiled_function_raises_what_pytorch_raises() -> None:
    function = torch.compile(lambda x, i: x[i] + 1, backend="anvil", dynamic=True)
    with pytest.raises(IndexError):
        function(X, torch.tensor([9, 0]))


@pytest.mark.parametrize("isolated", [False, True], ids=["in process", "isolated"])
def test_nothing_can_be_picked_from_an_empty_dimension(isolated: bool) -> None:
    lowered = program("rows", guard=isolated, isolated=isolated)
    with pytest.raises(IndexRangeError):
        lowered(torch.zeros(0, 3), torch.tensor([0, 0]))
    assert lowered(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
