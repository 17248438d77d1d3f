"""Compilers under test. One adapter per file; assay knows a compiled kernel only through ``protocol``."""
