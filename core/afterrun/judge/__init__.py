"""May these memories become one? The protocol, the judge by rules, and Claude Haiku."""

from afterrun.judge.deterministic import DeterministicJudge, Judge, Similarity
from afterrun.judge.haiku import HaikuJudge, choose_judge

__all__ = ["DeterministicJudge", "HaikuJudge", "Judge", "Similarity", "choose_judge"]
