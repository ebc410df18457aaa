"""Reads a text the way a strict judge needs it: words, phrases, quantities, and the small words that decide."""

from afterrun.reading.content import Item, ItemKind, Reading, read
from afterrun.reading.words import canonical, sentences, skeleton

__all__ = ["Item", "ItemKind", "Reading", "canonical", "read", "sentences", "skeleton"]
