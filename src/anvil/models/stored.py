"""The quantised matrices of a GGUF file as they lie in it, found for the parameters of the module loaded from it."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from anvil import quant
from anvil.errors import WeightsError
from anvil.quant import QuantMode, Stored


def stored_weights(reader: gguf.GGUFReader, module: torch.nn.Module) -> dict[str, Stored]:
    """Blocks of every matrix whose type is a mode's, by parameter name; nothing is rounded.

    Names are translated by the gguf package. Rows may lie in another order in the file (rotary pairs of q and k do):
    the order is found by comparing with the parameter, which proves at the same time that the blocks are its values.
    Raises :class:`WeightsError` where they are not.
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    modes = {mode.file.kind: mode for mode in quant.modes().values() if mode.file is not None}
    names = _name_map(reader)
    found: dict[str, Stored] = {}
    for parameter, value in module.named_parameters(remove_duplicate=False):
        base = names.get_name(parameter, try_suffixes=(".weight", ".bias"))
        tensor = tensors.get(base or "")
        if tensor is None or value.ndim != 2 or tensor.tensor_type.name not in modes:
            continue
        mode = modes[tensor.tensor_type.name]
        found[parameter] = Stored(mode.name, _read(tensor, mode, value, tensor.name))
    return found


def _name_map(reader: gguf.GGUFReader) -> gguf.TensorNameMap:
    name = _text(reader, "general.architecture")
    kinds = {text: kind for kind, text in gguf.MODEL_ARCH_NAMES.items()}
    if name not in kinds:
        raise WeightsError(f"reading stored weights: architecture={name!r}, expected one the gguf package knows")
    blocks = {int(part[1]) for tensor in reader.tensors if (part := tensor.name.split("."))[0] == "blk"}
    return gguf.get_tensor_name_map(kinds[name], max(blocks, default=0) + 1)


def _text(reader: gguf.GGUFReader, key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _read(tensor: gguf.ReaderTensor, mode: QuantMode, value: torch.Tensor, what: str) -> quant.Quantised:
    """The blocks of one matrix, rows in the order of ``value``."""
    file = mode.file
    assert file is not None
    outputs, inputs = value.shape
    raw = np.ascontiguousarray(tensor.data).view(np.uint8)
    if raw.size * file.size != outputs * inputs * file.nbytes:
        raise WeightsError(f"reading stored weights: {what} has bytes={raw.size}, not those of {tuple(value.shape)}")
    blocks = torch.from_numpy(raw.reshape(outputs, inputs // file.size, file.nbytes).copy())
    weight = file.read(blocks, (outputs, inputs))
    values = mode.dequantise(weight).float()
    if torch.equal(values, value.float()):
        return weight
    order = _order(values, value.float(), what)
    return quant.Quantised(weight.shape, {name: part[order] for name, part in weight.parts.items()})


def _order(stored: torch.Tensor, wanted: torch.Tensor, what: str) -> torch.Tensor:
    """Which stored row each wanted row is."""
    place: dict[bytes, list[int]] = {}
    for row, values in reversed(list(enumerate(stored.numpy()))):
        place.setdefault(values.tobytes(), []).append(row)
    try:
        return torch.tensor([place[values.tobytes()].pop() for values in wanted.contiguous().numpy()])
    except (KeyError, IndexError) as error:
        raise WeightsError(
            f"reading stored weights: the blocks of {what} are not the values of the parameter, in any order of rows; "
            "was the module changed after it was loaded?"
        ) from error
