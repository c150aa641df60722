"""Runs jobs: watches their queries, starts them again, reports on them, and stops them."""
