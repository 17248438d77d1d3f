"""Loads assay's pytest plugin for every test of this repository."""

pytest_plugins = ["assay.pytest_plugin"]
