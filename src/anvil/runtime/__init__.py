"""Running compiled programs: executors (in this process, isolated, emulated), memory, plans, token loops."""

from anvil.runtime.open import Status, open_executor, status

__all__ = ["Status", "open_executor", "status"]
