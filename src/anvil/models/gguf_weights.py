"""The tensors of a GGUF file under the names, and in the row order, of the module's parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anvil import quant
from anvil.errors import WeightsError
from anvil.quant import Quantised, QuantMode, Stored
from anvil.runtime.original import Original

_PLAIN = ("TensorProcessor", "LlamaTensorProcessor")  # those that only put the rows of a tensor in another order


def read_checked(path: Path) -> Any:
    """The file as a ``gguf.GGUFReader``, mapped: it is GGUF and holds all the tensors its header promises."""
    import gguf

    nbytes = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise WeightsError(
            f"loading GGUF file {path}: it begins with {magic!r}, expected b'GGUF'; this is not a GGUF file"
        )
    try:
        return gguf.GGUFReader(str(path))  # maps every tensor, so it fails where one reaches past the end of the file
    except Exception as error:
        raise WeightsError(
            f"loading GGUF file {path}: bytes={nbytes} is less than its header promises; the file is truncated or "
            "damaged; download it again"
        ) from error


@dataclass
class GgufTensors:
    """Tensors expanded to float32 when they are read; ``stored`` gives the blocks as they lie in the file.

    Which tensor is which parameter, and how its rows are ordered (rotary pairs of q and k lie in another order), is
    what transformers says. A model whose tensors are also cut or joined is not taken: it has no originals.
    """

    reader: Callable[[], Any]
    config: Callable[[], Any]
    names: Callable[[], tuple[str, ...]]

    def originals(self) -> dict[str, Original]:
        return {name: Original(self._shape(tensor), self._rows(name)) for name, tensor in self._tensors.items()}

    def stored(self) -> dict[str, Stored]:
        modes = {mode.file.kind: mode for mode in quant.modes().values() if mode.file is not None}
        found: dict[str, Stored] = {}
        for name, tensor in self._tensors.items():
            mode = modes.get(tensor.tensor_type.name)
            if mode is not None and len(tensor.shape) == 2:
                found[name] = Stored(mode.name, functools.partial(self._blocks, name, mode))
        return found

    @functools.cached_property
    def _tensors(self) -> Mapping[str, Any]:
        """The file's tensors by parameter name; empty for a model whose tensors are not parameters one to one."""
        if type(self._processor).__name__ not in _PLAIN:
            return {}
        places = self._places
        tensors = {tensor.name: tensor for tensor in self.reader().tensors}
        return {name: tensors[places[name]] for name in self.names() if places.get(name) in tensors}

    @functools.cached_property
    def _processor(self) -> Any:
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

        kind = self.config().model_type
        return TENSOR_PROCESSORS.get(kind, TensorProcessor)(config=self.config().to_dict())

    @functools.cached_property
    def _places(self) -> dict[str, str]:
        """Names in the file by parameter name, as the gguf package translates them."""
        import gguf

        reader = self.reader()
        kind = reader.get_field("general.architecture").contents()
        kinds = {text: kind for kind, text in gguf.MODEL_ARCH_NAMES.items()}
        if kind not in kinds:
            return {}
        blocks = {int(part[1]) for tensor in reader.tensors if (part := tensor.name.split("."))[0] == "blk"}
        names = gguf.get_tensor_name_map(kinds[kind], max(blocks, default=0) + 1)
        return {name: names.get_name(name, try_suffixes=(".weight", ".bias")) or "" for name in self.names()}

    @staticmethod
    def _shape(tensor: Any) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(tensor.shape))

    def _order(self, name: str) -> np.ndarray | None:
        """Which row of the file each row of the parameter is; None where they are the same."""
        tensor = self._tensors[name]
        outputs = self._shape(tensor)[0]
        rows = np.arange(outputs)[:, None]
        order = self._processor.process(weights=rows, name=tensor.name).weights[:, 0]
        return None if (order == rows[:, 0]).all() else order

    def _raw(self, name: str, order: np.ndarray | None, first: int, last: int) -> np.ndarray:
        """Rows of the parameter as they lie in the file."""
        data = self._tensors[name].data
        return np.array(data[first:last] if order is None else data[order[first:last]])

    def _rows(self, name: str) -> Callable[[int, int], torch.Tensor]:
        order = functools.cache(lambda: self._order(name))

        def rows(first: int, last: int) -> torch.Tensor:
            import gguf

            kind = self._tensors[name].tensor_type
            values = gguf.quants.dequantize(self._raw(name, order(), first, last), kind)
            return torch.from_numpy(np.array(values, dtype=np.float32))

        return rows

    def _blocks(self, name: str, mode: QuantMode) -> Quantised:
        """The blocks of one matrix, rows in the order of the parameter. Nothing is rounded."""
        file, (outputs, inputs) = mode.file, self._shape(self._tensors[name])
        assert file is not None
        raw = self._raw(name, self._order(name), 0, outputs).view(np.uint8)
        return file.read(torch.from_numpy(raw.reshape(outputs, inputs // file.size, file.nbytes)), (outputs, inputs))
