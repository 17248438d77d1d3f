"""``python -m assay`` is ``assay``."""

from assay.cli import app

app(prog_name="assay")
