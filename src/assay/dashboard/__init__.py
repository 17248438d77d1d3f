"""Run records for people: the grid of the ledger, and the page."""
