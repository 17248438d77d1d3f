"""assay: judges compiled numerical code against fp64 goldens with derived bounds, and says what was checked."""
