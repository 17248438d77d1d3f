"""An operand that is one number everywhere has no memory; what it is computed into has its full shape all the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowered import compiled

CALLS = {
    "matmul": lambda x: x @ torch.full((4, 3), 2.0),
    "summed": lambda x: (x @ torch.full((4, 3), 2.0)).sum(1),
    "batches": lambda x: torch.bmm(x[None].expand(2, -1, -1), torch.full((2, 4, 3), 2.0)),
    "linear": lambda x: F.linear(x, torch.full((3, 4), 2.0)),
    "convolution": lambda x: F.conv1d(x[:, None].expand(-1, 4, -1), torch.full((3, 4, 3), 2.0), padding=1),
    "one tap": lambda x: F.conv2d(x[None, None], torch.full((3, 1, 1, 1), 2.0)),
    "number summed": lambda x: torch.full((3, 4), 2.0).sum(1) * x.amax(),
    "summed over a symbolic size": lambda x: torch.full_like(x, 2.0).sum(0) * x.amax(),
    "greatest": lambda x: torch.full((3, 4), 2.0).amax(1) + x[:, :3],
    "mean and sum": lambda x: torch.full((5, 4), 2.0).mean() * x.sum(0),
    "softmax": lambda x: (torch.full((3, 4), 2.0) * x[:1]).softmax(1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_uniform_operand_leaves_nothing_unwritten(name: str) -> None:
    run = compiled(CALLS[name], torch.ones(5, 4), dynamic=[{0: "N"}], guard=True, isolated=True)
    for rows in (1, 2, 17):
        x = torch.arange(4.0 * rows).reshape(rows, 4)
        torch.testing.assert_close(run(x), CALLS[name](x), rtol=1e-6, atol=0)
