"""The thin query module: embed the question, call `memory_hybrid_search` once, pack the hits into a token budget.

The order is the database's: nothing here sorts. Packing only leaves hits out, says why, and cuts what is too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from afterrun.block import CUT, prompt_block
from afterrun.db import Database, recorded_plans
from afterrun.embed import Embedder
from afterrun.errors import InputError
from afterrun.lineage import check_model
from afterrun.models import COLLECTIONS, Hit, Recall, Withheld
from afterrun.redact import scrub
from afterrun.store import SearchFilter, Store

DEFAULT_MIN_RESULTS: Final = 5
DEFAULT_TOKEN_BUDGET: Final = 2000
MAX_RESULTS: Final = 200
_SHORTEST_SNIPPET: Final = 32  # tokens: below that a hit says nothing
_MAX_QUESTION: Final = (
    20_000  # characters: beyond that a question has no meaning that a vector or some words could carry
)

_WORD: Final = re.compile(r"\w+")


class TokenCounter(Protocol):
    """Counts tokens as the packaged model's tokenizer does."""

    def count(self, text: str) -> int:
        """How many tokens `text` has."""


def search(
    database: Database,
    query: str,
    embedder: Embedder | None,
    where: SearchFilter | None = None,
    *,
    limit: int = 20,
    min_results: int = DEFAULT_MIN_RESULTS,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Hit]:
    """The raw list of hits in the database's order, at most `limit`; any text is a legal query.

    An empty query gives the newest memories. Without an `embedder` words alone find. Where fewer than `min_results`
    memories are found, the newest that pass the filters fill up.

    Raises:
        InputError: a filter or a number cannot be used.
        DatabaseError, EmbeddingError: the search failed; a failure is never an empty list.
        ModelMismatchError: the database holds another model's vectors, which are never compared with this one's.
    """
    ask = _prepared(query, embedder, where or SearchFilter(), limit, min_results, now())
    with database.transaction() as connection:
        store = Store(connection)
        if embedder is not None:
            check_model(store, embedder.spec)
        return ask(store)


def search_plans(
    database: Database,
    query: str,
    embedder: Embedder | None,
    where: SearchFilter | None = None,
    *,
    limit: int = 20,
    min_results: int = DEFAULT_MIN_RESULTS,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[str]:
    """How Postgres runs this search: a text for each statement, see `db.recorded_plans`. Raises as `search`."""
    ask = _prepared(query, embedder, where or SearchFilter(), limit, min_results, now())
    with database.transaction() as connection:
        store = Store(connection)
        if embedder is not None:
            check_model(store, embedder.spec)
        with recorded_plans(connection) as plans:
            ask(store)
    return plans


def recall(
    database: Database,
    query: str,
    embedder: Embedder | None,
    where: SearchFilter | None = None,
    *,
    tokens: TokenCounter,
    min_results: int = DEFAULT_MIN_RESULTS,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    explain: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Recall:
    """What is worth knowing for `query`, best first, within `token_budget` tokens.

    At least `min_results` memories are returned whenever that many pass the filters. Contents longer than their share
    of the budget are cut. With `explain` the result lists what was withheld and why: first what the budget or a better
    hit left out, then the best of what the filters excluded. Raises as `search`.
    """
    where = where or SearchFilter()
    _check_whole(min_results=min_results, token_budget=token_budget)
    if token_budget < 1:
        raise InputError(f"token_budget is {token_budget}: it must be at least 1")
    found = search(
        database,
        query,
        embedder,
        where,
        limit=min(max(4 * min_results, token_budget // 50, 20), MAX_RESULTS),
        min_results=min_results,
        now=now,
    )
    hits, withheld = pack(found, tokens, min_results=min_results, token_budget=token_budget)
    if explain and where != (soft := SearchFilter(project=where.project, projects=where.projects)):
        withheld += _filtered_out(search(database, query, embedder, soft, min_results=0, now=now), where)
    return Recall(
        query=query,
        hits=tuple(hits),
        tokens=sum(hit.tokens for hit in hits),
        text=prompt_block(hits),
        withheld=tuple(withheld) if explain else (),
    )


def pack(
    found: Iterable[Hit], tokens: TokenCounter, *, min_results: int, token_budget: int
) -> tuple[list[Hit], list[Withheld]]:
    """Choose from `found`, in its order, what fits into `token_budget`; the chosen and the withheld hits.

    Near-identical hits of one project and collection collapse into the best of them, but never below `min_results`.
    """
    hits = list(found)
    doubles = _doubles(hits)
    spare = max(0, min_results - (len(hits) - len(doubles)))
    kept_doubles = set(list(doubles)[:spare])
    share = max(token_budget // max(min_results, 1), _SHORTEST_SNIPPET)
    chosen: list[Hit] = []
    withheld: list[Withheld] = []
    left = token_budget
    # Fix 2: honour min_results first
    for place, hit in enumerate(hits):
        if place in doubles and place not in kept_doubles:
            withheld.append(Withheld(hit=hit, reason=f"duplicate of {hits[doubles[place]].id}"))
            continue
        cut = cut_to(hit, tokens, share)
        if len(chosen) < min_results or cut.tokens <= left:
            chosen.append(cut)
            left -= cut.tokens
        else:
            withheld.append(Withheld(hit=hit, reason="budget"))
    return chosen, withheld


def cut_to(hit: Hit, tokens: TokenCounter, most: int) -> Hit:
    """The hit with its tokens counted, and its content cut at a word where it has more than `most` tokens."""
    # A token has at least one character, so the rest of a very long text need not be counted.
    content = hit.content[: most * 64]
    count = tokens.count(content)
    if count <= most and len(content) == len(hit.content):
        return replace(hit, tokens=count)
    while count > most:
        content = content[: max(1, min(len(content) * most // count, len(content) - 1))]
        count = tokens.count(content)
    shortened = (content.rsplit(maxsplit=1)[0] if " " in content else content).rstrip() + CUT
    return replace(hit, content=shortened, tokens=tokens.count(shortened), truncated=True)


def _prepared(
    query: str, embedder: Embedder | None, where: SearchFilter, limit: int, min_results: int, asked_at: datetime
) -> Callable[[Store], list[Hit]]:
    """The search with its question embedded, so that no transaction waits for the model."""
    _check(query, where, limit, min_results)
    question = scrub(query[:_MAX_QUESTION]).strip()
    vector = embedder.encode([question])[0] if embedder is not None and question else None
    model = embedder.spec.id if embedder is not None else None
    return lambda store: store.hybrid_search(
        question, vector, model, where, max_hits=limit, min_hits=min(min_results, limit), asked_at=asked_at
    )


def _filtered_out(found: Iterable[Hit], where: SearchFilter) -> list[Withheld]:
    """Those of `found` that the filters exclude, each with the names of the filters that do."""
    failed = ((hit, _failed(hit, where)) for hit in found)
    return [Withheld(hit=hit, reason=f"filter: {', '.join(names)}") for hit, names in failed if names]


def _failed(hit: Hit, where: SearchFilter) -> list[str]:
    passes = {
        "only_project": not where.only_project or hit.project == where.project,
        "collections": where.collections is None or hit.collection in where.collections,
        "source_types": where.source_types is None or hit.source_type in where.source_types,
        "since": where.since is None or hit.created_at >= where.since,
        "until": where.until is None or hit.created_at < where.until,
    }
    return [name for name, passed in passes.items() if not passed]


def _check(query: str, where: SearchFilter, limit: int, min_results: int) -> None:
    if not isinstance(query, str):
        raise InputError(f"a query is a string, not {type(query).__name__}")
    _check_whole(limit=limit, min_results=min_results)
    if where.project is not None and not isinstance(where.project, str):
        raise InputError(f"project is a string, not {type(where.project).__name__}")
    for collection in where.collections or ():
        if collection not in COLLECTIONS:
            raise InputError(f"collection {collection!r} does not exist: use some of {', '.join(COLLECTIONS)}")
    if not 1 <= limit <= MAX_RESULTS:
        raise InputError(f"limit is {limit}: use 1 to {MAX_RESULTS}")
    if not 0 <= min_results <= MAX_RESULTS:
        raise InputError(f"min_results is {min_results}: use 0 to {MAX_RESULTS}")
    if not isinstance(where.only_project, bool):
        raise InputError(f"only_project is true or false, not {type(where.only_project).__name__}")
    if where.only_project and not where.project:
        raise InputError("only_project needs a project")


def _check_whole(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise InputError(f"{name} is a whole number, not {type(number).__name__}")


def _doubles(hits: list[Hit]) -> dict[int, int]:
    """Places of hits that repeat an earlier one word for word, each with that one's place; in the order of the list."""
    first: dict[tuple[str, str, tuple[str, ...]], int] = {}
    doubles: dict[int, int] = {}
    for place, hit in enumerate(hits):
        # Only signs, case and white space may differ: one number or one "not" makes another statement.
        words = tuple(match.group().casefold() for match in _WORD.finditer(hit.content))
        earlier = first.setdefault((hit.project, hit.collection, words), place)
        if earlier != place:
            doubles[place] = earlier
    return doubles
