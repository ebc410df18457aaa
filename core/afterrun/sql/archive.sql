-- name: begin_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: newest_migration
SELECT max(name) FROM schema_migrations WHERE name NOT LIKE 'functions/%%'

-- name: embedding_models
SELECT id, dimension FROM embedding_models

-- name: count_copies
SELECT count(*) FROM memories
WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)

-- name: copy_of_memories
-- What replaced a memory comes before it, so that it can be written in this order. A memory that passes the filter
-- brings along what it replaced and what replaced it.
WITH RECURSIVE passing AS (
    SELECT id, superseded_by FROM memories
    WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
),
related AS (
    SELECT id FROM passing
    WHERE num_nonnulls(%(projects)s::text[], %(since)s::timestamptz, %(until)s::timestamptz) > 0
    AND (superseded_by IS NOT NULL OR EXISTS (SELECT FROM memories old WHERE old.superseded_by = passing.id))
    UNION
    SELECT next.id
    FROM related
    CROSS JOIN LATERAL (
        SELECT superseded_by AS id FROM memories WHERE id = related.id AND superseded_by IS NOT NULL
        UNION ALL
        SELECT id FROM memories WHERE superseded_by = related.id
    ) next
),
steps AS (
    SELECT m.id, 1 AS steps
    FROM memories m JOIN memories last ON last.id = m.superseded_by
    WHERE last.superseded_by IS NULL
    UNION ALL
    SELECT m.id, steps.steps + 1
    FROM steps JOIN memories m ON m.superseded_by = steps.id
)
SELECT
    m.id, m.collection, m.project, m.source_type, m.content, m.category, m.importance, m.session, m.session_ordinal,
    m.metadata, m.source_key, m.is_active, m.archived, m.superseded_by, m.seen, m.seen_at, m.created_at, m.updated_at,
    m.compared_at, successor.source_key AS successor_key
FROM memories m
LEFT JOIN steps USING (id)
LEFT JOIN memories successor ON successor.id = m.superseded_by
WHERE m.id IN (SELECT id FROM passing UNION ALL SELECT id FROM related)
ORDER BY coalesce(steps.steps, 0), m.created_at, m.id

-- name: copy_of_chunks
SELECT memory_id, model, ordinal, content, embedding, attempts, failed, lease_until, last_error, created_at
FROM chunks
WHERE memory_id = ANY (%(memory_ids)s)
ORDER BY memory_id, model, ordinal

-- name: copy_of_source_types
SELECT source_type, half_life_days, weight FROM source_types ORDER BY source_type

-- name: copy_of_consolidations
SELECT
    id, state, collection, project, members, canonical, superseded, model, calls, input_tokens, output_tokens, guard,
    reason, attempts, invalid_answers, similarity, waits_for, not_before, leased_until, created_at, updated_at
FROM consolidations c
WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
AND (num_nonnulls(%(since)s::timestamptz, %(until)s::timestamptz) = 0 OR EXISTS (
    SELECT FROM memories m WHERE m.id = ANY (c.members)
    AND (%(since)s::timestamptz IS NULL OR m.created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR m.created_at < %(until)s)))
ORDER BY created_at, id

-- name: copy_of_dead_letters
SELECT d.task, d.subject, d.memory_id, d.payload, d.error, d.attempts, d.created_at
FROM dead_letters d LEFT JOIN memories m ON m.id = d.memory_id
WHERE (%(projects)s::text[] IS NULL OR coalesce(m.project, d.payload ->> 'repo') = ANY (%(projects)s))
AND (%(since)s::timestamptz IS NULL OR coalesce(m.created_at, d.created_at) >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR coalesce(m.created_at, d.created_at) < %(until)s)
ORDER BY d.id

-- name: copy_of_spend
-- Nothing else tells two pieces of work of the same moment apart.
SELECT
    at, purpose, project, run, subject, model, calls, input_tokens, output_tokens, reserved_until,
    row_number() OVER (PARTITION BY at, purpose, project, run, subject, model ORDER BY id) AS place
FROM spend
WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR at < %(until)s)
ORDER BY id

-- name: copy_of_windows
SELECT digest, project, session, extractor, memories, read_at FROM session_windows
WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
AND (%(since)s::timestamptz IS NULL OR read_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR read_at < %(until)s)
ORDER BY read_at, digest

-- name: copy_of_source_files
-- Not by time: a file counts as indexed only with all of its memories.
SELECT project, source, path, size, modified_ns, digest, reader, skipped, pieces, etag, last_modified, indexed_at
FROM source_files
WHERE (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))
AND num_nonnulls(%(since)s::timestamptz, %(until)s::timestamptz) = 0
ORDER BY project, source, path

-- name: begin_import
INSERT INTO imports (export, into_empty) SELECT %(export)s, NOT EXISTS (SELECT FROM memories)
ON CONFLICT (export) DO UPDATE SET export = excluded.export
RETURNING into_empty AND finished_at IS NULL

-- name: finish_import
UPDATE imports SET finished_at = now() WHERE export = %(export)s

-- name: known_copies
SELECT id, source_key FROM memories WHERE id = ANY (%(ids)s) OR source_key = ANY (%(source_keys)s)

-- name: paste_memory
-- A note whose text is active here under another id becomes one that this one replaced: both ids lead to it.
-- They are looked up by their hash alone: of a table that has just been filled, Postgres does not know yet that a project
-- has many rows and a hash has one.
WITH alike AS MATERIALIZED (
    SELECT id, project, collection, is_active, source_key FROM memories WHERE content_hash = %(content_hash)s
),
twin AS (
    UPDATE memories SET
        seen = memories.seen + %(seen)s,
        seen_at = greatest(seen_at, %(seen_at)s),
        importance = greatest(importance, %(importance)s)
    WHERE id = (
        SELECT id FROM alike
        WHERE %(is_active)s AND %(source_key)s::text IS NULL
        AND is_active AND source_key IS NULL AND project = %(project)s AND collection = %(collection)s
    )
    RETURNING id
),
successor AS (
    SELECT coalesce(
        (SELECT id FROM twin),
        (SELECT id FROM memories WHERE id = %(superseded_by)s),
        (SELECT id FROM memories WHERE source_key = %(successor_key)s)
    ) AS id
)
INSERT INTO memories (
    id, collection, project, source_type, content, content_hash, category, importance, session, session_ordinal, metadata,
    source_key, is_active, archived, superseded_by, seen, seen_at, compared_at, created_at, updated_at, search
)
SELECT
    %(id)s, %(collection)s, %(project)s, %(source_type)s, %(content)s, %(content_hash)s, %(category)s, %(importance)s,
    %(session)s, %(session_ordinal)s,
    %(metadata)s::jsonb || CASE WHEN %(superseded_by)s::uuid IS NOT NULL AND successor.id IS NULL
        THEN jsonb_build_object('superseded_by', %(superseded_by)s::uuid) ELSE '{}' END,
    %(source_key)s, %(is_active)s AND successor.id IS NULL, %(archived)s, successor.id, %(seen)s, %(seen_at)s,
    %(compared_at)s, %(created_at)s, %(updated_at)s, memory_search_vector(%(content)s)
FROM successor
RETURNING is_active

-- name: paste_chunks
COPY chunks (
    memory_id, model, ordinal, content, embedding, attempts, failed, lease_until, last_error, created_at, collection,
    project, is_active
) FROM STDIN (FORMAT BINARY)

-- name: paste_source_type
INSERT INTO source_types (source_type, half_life_days, weight) VALUES (%(source_type)s, %(half_life_days)s, %(weight)s)
ON CONFLICT (source_type) DO UPDATE SET half_life_days = excluded.half_life_days, weight = excluded.weight
WHERE %(overwrite)s
RETURNING true

-- name: keep_source_types
DELETE FROM source_types WHERE source_type <> ALL (%(source_types)s) AND source_type <> '*'

-- name: paste_consolidation
INSERT INTO consolidations (
    id, members_hash, state, collection, project, members, canonical, superseded, model, calls, input_tokens,
    output_tokens, guard, reason, attempts, invalid_answers, similarity, waits_for, not_before, leased_until, created_at,
    updated_at
)
VALUES (
    %(id)s, %(members_hash)s, %(state)s, %(collection)s, %(project)s, %(members)s,
    (SELECT id FROM memories WHERE id = %(canonical)s), %(superseded)s, %(model)s, %(calls)s, %(input_tokens)s,
    %(output_tokens)s, %(guard)s, %(reason)s, %(attempts)s, %(invalid_answers)s, %(similarity)s, %(waits_for)s,
    %(not_before)s, %(leased_until)s, %(created_at)s, %(updated_at)s
)
ON CONFLICT DO NOTHING
RETURNING true

-- name: paste_dead_letter
INSERT INTO dead_letters (task, subject, memory_id, payload, error, attempts, created_at)
SELECT %(task)s, %(subject)s, %(memory_id)s, %(payload)s, %(error)s, %(attempts)s, %(created_at)s
WHERE %(memory_id)s::uuid IS NULL OR EXISTS (SELECT FROM memories WHERE id = %(memory_id)s)
ON CONFLICT (task, subject) DO NOTHING
RETURNING true

-- name: paste_spend
INSERT INTO spend (at, purpose, project, run, subject, model, calls, input_tokens, output_tokens, reserved_until)
SELECT
    %(at)s, %(purpose)s, %(project)s, %(run)s, %(subject)s, %(model)s, %(calls)s, %(input_tokens)s, %(output_tokens)s,
    %(reserved_until)s
WHERE %(place)s > (
    SELECT count(*) FROM spend
    WHERE at = %(at)s AND purpose = %(purpose)s AND project = %(project)s AND run = %(run)s AND subject = %(subject)s
    AND model = %(model)s
)
RETURNING true

-- name: paste_window
INSERT INTO session_windows (digest, project, session, extractor, memories, read_at)
VALUES (%(digest)s, %(project)s, %(session)s, %(extractor)s, %(memories)s, %(read_at)s)
ON CONFLICT (digest) DO NOTHING
RETURNING true

-- name: paste_source_file
-- With a memory of it missing, the file must be read again.
INSERT INTO source_files (
    project, source, path, size, modified_ns, digest, reader, skipped, pieces, etag, last_modified, indexed_at
)
SELECT
    %(project)s, %(source)s, %(path)s, %(size)s, %(modified_ns)s, %(digest)s, %(reader)s, %(skipped)s, %(pieces)s,
    %(etag)s, %(last_modified)s, %(indexed_at)s
WHERE NOT EXISTS (
    SELECT FROM unnest(%(pieces)s::text[]) piece
    WHERE NOT EXISTS (SELECT FROM memories WHERE source_key = piece)
)
ON CONFLICT (project, source, path) DO NOTHING
RETURNING true
