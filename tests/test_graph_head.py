"""The greedy head gives the row and the token that the whole logits give."""

import pytest
import torch

from anvil.errors import UnsupportedError
from anvil.frontend.capture import capture
from anvil.graph.head import greedy_head

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])


class Model(torch.nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.embed, self.lm_head, self.cap = torch.nn.Embedding(8, 6), torch.nn.Linear(6, 8), cap

    def forward(self, ids):
        logits = self.lm_head(self.embed(ids))
        return torch.tanh(logits) if self.cap else logits


@pytest.mark.parametrize("cap", [False, True], ids=["linear", "soft-capped"])
def test_one_row_and_its_best_token(cap):
    torch.manual_seed(1)
    module = Model(cap).eval()
    program = capture(module, (IDS,), ({0: "B", 1: "S"},))
    head = greedy_head(program)
    assert head.inputs == ("ids", "last")
    last = torch.tensor([3, 1])
    row, token = head.module(IDS, last, *head.params.values())
    want = module(IDS)[torch.arange(2), last]
    torch.testing.assert_close(row[:, 0], want)
    assert torch.equal(token[:, 0], want.argmax(-1))


def test_the_projection_runs_on_one_row():
    head = greedy_head(capture(Model(False), (IDS,), ({0: "B", 1: "S"},)))
    (linear,) = head.module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert linear.meta["val"].shape[1] == 1


def test_an_output_that_is_not_logits_is_refused():
    program = capture(torch.nn.Linear(4, 4), (torch.ones(2, 4),), ({0: "M"},))
    with pytest.raises(UnsupportedError, match=r"expected one of shape \[batch, tokens, vocabulary\]"):
        greedy_head(program)
