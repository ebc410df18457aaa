"""The largest things that Afterrun remembers; what is larger is refused with a word, not cut."""

from __future__ import annotations

from typing import Final

MAX_CHARACTERS: Final = 5_000_000
"""The longest memory: some thousand chunks. What is longer is a document and belongs to an indexed source."""

MAX_NAME: Final = 300
"""Characters of a project, source type, category or session: they are names, and stand in indexes."""
