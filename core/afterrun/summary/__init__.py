"""Long texts into short ones: a session's transcript into facts, the runs of a period into a summary.

`windows` cuts a transcript, `rules` and `haiku_facts` read facts in it, `grounding` checks what a model says against
what it read. `digest` and `haiku_digest` word a roll-up, without and with a language model.
"""

from afterrun.summary.digest import DigestWriter, Entry, Worded, Writer
from afterrun.summary.facts import Dropped, Extracted, Extractor, Fact
from afterrun.summary.haiku_digest import HaikuWriter
from afterrun.summary.haiku_facts import HaikuExtractor
from afterrun.summary.rules import RuleExtractor
from afterrun.summary.windows import Window, windows

__all__ = [
    "DigestWriter",
    "Dropped",
    "Entry",
    "Extracted",
    "Extractor",
    "Fact",
    "HaikuExtractor",
    "HaikuWriter",
    "RuleExtractor",
    "Window",
    "Worded",
    "Writer",
    "windows",
]
