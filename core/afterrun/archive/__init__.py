"""A memory in a file and back: export and import as JSON Lines, streamed, redacted on the way in."""

from __future__ import annotations

from afterrun.archive.files import opened, replaced
from afterrun.archive.incoming import Imported, import_memories
from afterrun.archive.outgoing import Exported, export_memories
from afterrun.archive.pasting import Pasted

__all__ = ["Exported", "Imported", "Pasted", "export_memories", "import_memories", "opened", "replaced"]
