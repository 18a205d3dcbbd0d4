"""Shared ground: errors, extras, registries, words for axes. Imports nothing else from joma."""
