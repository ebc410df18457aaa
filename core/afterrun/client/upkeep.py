"""The methods that keep a memory clean: find near-duplicates, have them judged, take a merge back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from afterrun import clusters, consolidate, review, takeback
from afterrun.client.arguments import as_ids, as_time
from afterrun.client.opened import Opened
from afterrun.clusters import Scan, Thresholds
from afterrun.consolidate import Outcome
from afterrun.models import Cluster
from afterrun.queue import CONSOLIDATE_CLUSTER, EMBED
from afterrun.review import Preview


class Upkeep(Opened):
    """A memory's upkeep."""

    def find_clusters(self) -> list[tuple[UUID, ...]]:
        """Compare every memory that has not been compared since it changed; the clusters proposed now."""
        proposed: list[tuple[UUID, ...]] = []
        while (scan := self.scan()).looked_at:
            proposed += [proposal.members for proposal in scan.proposals]
        return proposed

    def scan(self, limit: int = 100) -> Scan:
        """Compare up to `limit` such memories; what was proposed, and how many were looked at."""
        return clusters.find_clusters(
            self.database, self.chunker.spec.id, at_least=self.thresholds.cluster, limit=limit
        )

    def waiting_clusters(self) -> list[tuple[UUID, ...]]:
        """The members of clusters that wait for this memory's judge."""
        return consolidate.waiting(self.database, self.judge.name)

    def consolidate(self, *memory_ids: UUID | str, run: str | None = None) -> Outcome:
        """Judge one cluster and merge what is the same in it.

        `run` names the chain of work whose cap on spend counts; without it the cluster is one of its own. Raises
        InputError, LanguageModelRejectedError, DatabaseError.
        """
        outcome = consolidate.consolidate_cluster(
            self.database,
            as_ids(memory_ids),
            judge=self.judge,
            chunker=self.chunker,
            max_attempts=self.settings.max_attempts,
            lease=self.settings.lease_seconds,
            exact=self.thresholds.exact,
            budget=self.budget,
            run=run,
        )
        if outcome.canonical:
            self.nudge(EMBED)
        return outcome

    def resume_clusters(self) -> None:
        """Make clusters due that pause after a failure or for a cap, so that a person need not wait for them."""
        consolidate.resume(self.database)

    def previews(self) -> list[Preview]:
        """What a merge of each waiting cluster would do; no language model is asked."""
        return review.previews(self.database, self.judge)

    def accept(self, shown: Preview, *, newest_wins: bool = False) -> Outcome:
        """Merge a cluster as a person has seen it, or let its newest member supersede the others."""
        outcome = review.accept(
            self.database, shown, self.chunker, newest_wins=newest_wins, lease=self.settings.lease_seconds
        )
        if outcome.canonical:
            self.nudge(EMBED)
        return outcome

    def reject(self, consolidation: UUID | str) -> Cluster:
        """Record that a waiting cluster must not be merged, now or later. Raises NotFoundError, ConflictError."""
        return takeback.reject(self.database, as_ids([consolidation])[0])

    def undo(self, consolidation: UUID | str) -> Cluster:
        """Take one merge back. Raises NotFoundError, ConflictError."""
        return takeback.undo(self.database, as_ids([consolidation])[0])

    def undo_since(self, since: str | datetime) -> list[Cluster]:
        """Take back every merge since a time, newest first."""
        return takeback.undo_since(self.database, as_time("since", since))

    def nudge_clusters(self, found: Iterable[tuple[UUID, ...]]) -> None:
        """Have the workers judge these clusters."""
        for members in found:
            self.nudge(CONSOLIDATE_CLUSTER, memory_ids=[str(member) for member in members])

    @property
    def thresholds(self) -> Thresholds:
        """The cosines at which memories become candidates, are judged at once, and may need no language model."""
        return clusters.thresholds(
            self.chunker.spec.id,
            cluster=self.settings.cluster_similarity,
            near=self.settings.near_similarity,
            exact=self.settings.exact_similarity,
        )
