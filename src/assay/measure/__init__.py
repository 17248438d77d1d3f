"""Speed, measured so that it can be believed: ceilings, statistics of generation, paired comparison."""
