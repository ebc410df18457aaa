"""The tasks, by their public names. Each calls one verb; arguments are hints, the databases are the truth."""

from __future__ import annotations

from celery.utils.log import get_task_logger

from afterrun import index, repair, vectors
from afterrun.errors import InputError, LanguageModelRejectedError
from afterrun.queue import CONSOLIDATE_CLUSTER, EMBED, FIND_CLUSTERS, INDEX_RUN, ROLL_UP, SWEEP
from afterrun_workers import runtime
from afterrun_workers.app import app, settings
from afterrun_workers.arguments import described, run_of

log = get_task_logger(__name__)


@app.task(name=INDEX_RUN)
def index_run(*arguments: object, **keywords: object) -> None:
    """Index one finished run, `run={repo, summary, …}` or flat as keywords, and have it embedded.

    Keywords beside `run` are ignored; what is no run goes to the dead letters.
    """
    if "run" in keywords and len(keywords) > 1:
        log.warning("index_run(run=…) takes no other keywords: ignored %s", described([*keywords]))
    memory = runtime.memory()
    with runtime.requeued_while_down():
        run = run_of(arguments, keywords)
        done = index.index_message(memory.database, run, memory.chunker, home=settings.home)
    if done.added:
        memory.nudge(EMBED)


@app.task(name=EMBED)
def embed(*_ignored: object, **_more: object) -> None:
    """Embed one batch of what is pending; when nothing is left, look for near-duplicates of what is new."""
    memory = runtime.memory()
    done = vectors.embed_pending(
        memory.database,
        runtime.embedder(),
        limit=settings.embed_batch,
        lease=settings.lease_seconds,
        max_attempts=settings.max_attempts,
    )
    if done.embedded or done.failed:
        log.info("embedded %d chunks, %d failed", done.embedded, done.failed)
        memory.nudge(EMBED if done.more else FIND_CLUSTERS)


@app.task(name=CONSOLIDATE_CLUSTER)
def consolidate_cluster(memory_ids: object = None, *_ignored: object, **_more: object) -> None:
    """Judge one candidate cluster and carry the verdict out."""
    ids = memory_ids if isinstance(memory_ids, list | tuple) else []
    try:
        outcome = runtime.memory().consolidate(*map(str, ids))
    except InputError:
        log.warning("consolidate_cluster takes memory_ids, two or more ids of memories, not %s", described(memory_ids))
        return
    except LanguageModelRejectedError as error:
        log.error("clusters wait until this is mended: %s", error)
        return
    log.info("cluster of %d memories: %s %s", len(ids), outcome.state, outcome.reason)


@app.task(name=SWEEP)
def sweep() -> None:
    """Pick up whatever was lost: unannounced runs, chunks of dead workers, clusters that wait."""
    memory = runtime.memory()
    swept = repair.sweep(
        memory.database, memory.run_stores(), memory.chunker, home=settings.home, judge_name=memory.judge.name
    )
    if swept.indexed.seen:
        log.info("the sweep indexed %d runs", swept.indexed.added)
    if swept.pending:
        memory.nudge(EMBED)
    memory.nudge_clusters(swept.clusters)


@app.task(name=FIND_CLUSTERS)
def find_clusters() -> None:
    """Propose clusters among one batch of memories that have not been compared since they changed; then the next."""
    memory = runtime.memory()
    scan = memory.scan()
    # The others go with the next sweep, the most alike first.
    near = [proposal.members for proposal in scan.proposals if proposal.similarity >= memory.thresholds.near]
    memory.nudge_clusters(near)
    if scan.looked_at:
        memory.nudge(FIND_CLUSTERS)


@app.task(name=ROLL_UP)
def roll_up() -> None:
    """Write the roll-ups that are due in every run store that can be reached."""
    done = runtime.memory().roll_up()
    if done.written or done.waiting:
        log.info("rolled up %d batches, %d wait", len(done.written), len(done.waiting))
