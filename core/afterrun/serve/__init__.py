"""Thin adapters: parse, call one verb, format."""
