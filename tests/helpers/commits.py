"""Commits of the base model in a cache of the Hub."""

COMMITS = {"main": "a" * 40, "v1": "1" * 40}
