"""Normalisation: one spelling for every meaning, before any pattern is looked for."""
