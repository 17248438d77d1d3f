"""``torch.compile(module, backend="anvil")``."""

from anvil.frontend.dynamo.backend import anvil

__all__ = ["anvil"]
