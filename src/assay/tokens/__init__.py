"""The full-model stage: models as data, stored goldens, and the judgement of a compiled model's tokens."""
