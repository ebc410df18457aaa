"""A small pipeline that remembers: it recalls what earlier runs left, does its work, and hands the run over.

Run it twice, with `afterrun up` in another terminal, and the second run knows what the first one did:

    python examples/orchestrator.py my-app "Add a login page"
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field

from afterrun import RunStore, finish
from afterrun.settings import load


@dataclass
class Orchestrator:
    """Runs the steps of one task on a repository."""

    repo: str
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, task: str) -> str:
        """Plan, build and review `task`; returns the summary of the run."""
        with RunStore(load().run_store) as store:
            before = store.recall(self.repo)
        steps = [self._plan(task, before), self._build(task), self._review(task)]
        summary = "\n".join(steps)
        self._finish(summary)
        return summary

    def _finish(self, summary: str) -> None:
        receipt = finish(self.repo, summary, run_id=self.run_id, tags=["example"])
        if receipt.error:
            print(f"afterrun: {receipt.error}", file=sys.stderr)

    def _plan(self, task: str, before: str) -> str:
        known = f"with {len(before.splitlines())} lines of memory at hand" if before else "without any memory yet"
        return f"Planned the task {known}: {task}."

    def _build(self, task: str) -> str:
        return f"Built it in small steps: {task}."

    def _review(self, task: str) -> str:
        return f"Reviewed the result and found it good: {task}."


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/orchestrator.py REPO TASK")
    print(Orchestrator(repo=sys.argv[1]).run(sys.argv[2]))
