"""The methods that make short texts of long ones: a session into facts, runs into months and quarters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from afterrun import roll_up, summarize
from afterrun.client.arguments import as_time
from afterrun.client.once import once
from afterrun.client.opened import Opened
from afterrun.haiku import Haiku, choose_haiku
from afterrun.models import GLOBAL_PROJECT
from afterrun.queue import EMBED
from afterrun.roll_up import RolledUp
from afterrun.summarize import Summarized
from afterrun.summary import DigestWriter, Extractor, HaikuExtractor, HaikuWriter, RuleExtractor, Writer


class Sessions(Opened):
    """A memory's summaries: by Claude Haiku with a key, by rules without one."""

    def summarize_session(
        self,
        text: str,
        *,
        project: str = GLOBAL_PROJECT,
        session: str | None = None,
        created_at: str | datetime | None = None,
        on_progress: Callable[[int, int], None] = lambda done, parts: None,
    ) -> Summarized:
        """Remember the facts of a session's transcript; the result says who read it, what was dropped and what is left.

        The same call again costs nothing, or goes on where a cap on spend or a failure stopped it. `session` and
        `created_at` become those of the memories. Raises EmptyError, InputError, UnreadError, DatabaseError.
        """
        done = summarize.summarize_session(
            self.database,
            text,
            chunker=self.chunker,
            extractor=self.extractor,
            budget=self.budget,
            project=project,
            session=session,
            created_at=None if created_at is None else as_time("created_at", created_at),
            on_progress=on_progress,
        )
        if done.added:
            self.nudge(EMBED)
        return done

    def roll_up(self) -> RolledUp:
        """Write every roll-up that is due in the run stores of this host. Raises LanguageModelRejectedError."""
        done = roll_up.roll_up(
            self.database,
            self.run_stores(),
            self.chunker,
            home=self.settings.home,
            writer=self.writer,
            budget=self.budget,
            lease=self.settings.lease_seconds,
        )
        if done.written:
            self.nudge(EMBED)
        return done

    @once
    def haiku(self) -> Haiku | None:
        """Claude Haiku, where a key is set."""
        return choose_haiku(self.settings)

    @property
    def extractor(self) -> Extractor:
        """Who reads the facts of a session."""
        return HaikuExtractor(self.haiku) if self.haiku else RuleExtractor()

    @property
    def writer(self) -> Writer:
        """Who words a roll-up."""
        return HaikuWriter(self.haiku) if self.haiku else DigestWriter()
