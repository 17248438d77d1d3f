"""Models whose PyTorch code was changed compile as they are, and give PyTorch's logits and tokens."""

import numpy as np
import pytest
import torch
from changed_models import MODELS

import anvil
from anvil.errors import UnsupportedError

UNSUPPORTED = {"gemma2": r"anvil\.attention\(.*no attention kernel has a soft cap"}
PROMPT = [3, 17, 5, 28, 9, 1, 30]


def logits_of(module, ids):
    with torch.no_grad():
        output = module(torch.tensor([ids]))
    return getattr(output, "logits", output)[0].numpy()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - UNSUPPORTED.keys()))
def test_logits_and_tokens_are_those_of_pytorch(name):
    module = MODELS[name]().eval()
    model = anvil.compile(module, context=16)
    np.testing.assert_allclose(model.logits(PROMPT), logits_of(module, PROMPT), atol=1e-4, rtol=1e-4)
    ids = list(PROMPT)
    for token in model.generate(PROMPT, 8).ids:
        top = np.sort(logits_of(module, ids)[-1])[-2:]
        assert top[1] - top[0] > 1e-4, "a tie: choose another prompt"
        assert token == logits_of(module, ids)[-1].argmax()
        ids.append(token)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_has_no_kernel_yet_is_refused_by_name(name):
    with pytest.raises(UnsupportedError, match=UNSUPPORTED[name]):
        anvil.compile(MODELS[name]().eval(), context=16)
