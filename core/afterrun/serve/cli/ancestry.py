"""How the history of a memory looks: a tree from the memory that is recalled now down to the first originals.

Between a memory and what it replaced stands why: who judged, when, the reason, the rule that fired, and the
consolidation's id, which `afterrun undo` takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Final

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from afterrun.care import Lineage
from afterrun.models import Cluster, MemoryRecord
from afterrun.serve.cli.hits import state_of
from afterrun.serve.cli.output import on_terminal, one_line, shown

_LONGEST: Final = 80
_NO_WRAP: Final = 10_000
_NOT_CARRIED_OUT: Final = ("undone", "rejected", "related", "waiting", "failed")


def write_tree(lineage: Lineage) -> None:
    """Write the whole history of a memory: wrapped on a terminal, a line each elsewhere."""
    console = Console() if on_terminal() else Console(width=_NO_WRAP)
    console.print(_tree(lineage))


def _tree(lineage: Lineage) -> Tree:
    line: list[Lineage] = [*reversed(lineage.successors), lineage]
    root = branch = Tree(_label(line[0].memory, own=line[0] is lineage))
    for above, below in pairwise(line):
        cause = _cause(above.memory, below)
        branch = branch.add(_reason(cause)) if cause else branch
        branch = branch.add(_label(below.memory, own=below is lineage))
    _add_originals(branch, lineage)
    for cluster in lineage.consolidations:
        if cluster.state in _NOT_CARRIED_OUT:
            branch.add(_reason(cluster))
    return root


def _add_originals(branch: Tree, lineage: Lineage) -> None:
    caused = [(_cause(lineage.memory, original), original) for original in lineage.originals]
    caused.sort(key=lambda pair: str(pair[0].id) if pair[0] else "")
    for _, group in groupby(caused, key=lambda pair: pair[0] and pair[0].id):
        together = list(group)
        cause = together[0][0]
        node = branch.add(_reason(cause)) if cause else branch
        for _, original in together:
            below = node.add(_label(original.memory))
            if original.more:
                below.add(Text(f"{original.more} more below: afterrun history {original.memory.id}", style="italic"))
            _add_originals(below, original)
            _add_undone(below, original.consolidations)


def _add_undone(branch: Tree, consolidations: Iterable[Cluster]) -> None:
    for cluster in consolidations:
        if cluster.state == "undone":
            branch.add(_reason(cluster))


def _cause(memory: MemoryRecord, original: Lineage) -> Cluster | None:
    """The consolidation by which `memory` took the place of `original`."""
    merges = [cluster for cluster in original.consolidations if cluster.state == "merged"]
    return next((cluster for cluster in merges if memory.id in (cluster.canonical, *cluster.members)), None)


def _reason(cluster: Cluster) -> Text:
    verb = "replaced" if cluster.state == "merged" and cluster.canonical is None else cluster.state
    by = f" by {cluster.model}" if cluster.model else ""
    rule = f" (rule: {cluster.guard})" if cluster.guard else ""
    reason = f": {one_line(cluster.reason)}" if cluster.reason else ""
    return Text(one_line(f"{verb}{by} {shown(cluster.updated_at)}{reason}{rule} [{cluster.id}]"), style="italic")


def _label(record: MemoryRecord, *, own: bool = False) -> Text:
    beginning = one_line(record.content)
    short = beginning if len(beginning) <= _LONGEST else beginning[: _LONGEST - 1] + "…"
    generation = record.metadata.get("generation")
    merges = f"  generation {generation}" if isinstance(generation, int) else ""
    line = f"{record.id}  {state_of(record)}  {shown(record.created_at)}{merges}  {short}"
    return Text(line, style="bold" if own else "")
