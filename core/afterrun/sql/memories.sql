-- name: add_note
INSERT INTO memories (
    collection, project, source_type, content, content_hash, category, importance, session, session_ordinal, metadata,
    created_at, search
)
VALUES (
    %(collection)s, %(project)s, %(source_type)s, %(content)s, %(content_hash)s, %(category)s, %(importance)s, %(session)s,
    coalesce(%(session_ordinal)s, memory_next_ordinal(%(project)s, %(session)s)), %(metadata)s,
    coalesce(%(created_at)s, now()), memory_search_vector(%(content)s)
)
ON CONFLICT (project, collection, content_hash) WHERE is_active AND source_key IS NULL
DO UPDATE SET
    seen = memories.seen + 1,
    seen_at = now(),
    importance = greatest(memories.importance, excluded.importance)
RETURNING id, xmax = 0 AS created

-- name: said_before
WITH RECURSIVE said AS (
    SELECT asked.place, m.id, m.is_active, m.superseded_by, 0 AS steps
    FROM unnest(%(projects)s::text[], %(collections)s::text[], %(hashes)s::bytea[])
        WITH ORDINALITY AS asked (project, collection, content_hash, place)
    JOIN memories m USING (content_hash, project, collection)
    WHERE NOT m.archived
    UNION ALL
    -- Only to the memory that took it in: what a newer truth replaced is said anew.
    SELECT said.place, m.id, m.is_active, m.superseded_by, said.steps + 1
    FROM said
    JOIN memories m ON m.id = said.superseded_by
    WHERE NOT said.is_active AND NOT m.archived AND m.metadata -> 'consolidated_from' ? said.id::text
    AND said.steps < 100
)
SELECT DISTINCT ON (place) place, id FROM said WHERE is_active ORDER BY place, steps, id

-- name: begun_with
SELECT id FROM memories
WHERE project = %(project)s AND collection = %(collection)s AND is_active
AND left(content, 48) LIKE %(pattern)s AND starts_with(content, %(beginning)s)
ORDER BY created_at DESC, id
LIMIT 1

-- name: reinforce
UPDATE memories SET seen = seen + 1, seen_at = now(), importance = greatest(importance, %(importance)s)
WHERE id = %(id)s AND is_active
RETURNING id

-- name: inherit_seen
UPDATE memories SET seen = heard.seen, seen_at = heard.seen_at
FROM (SELECT sum(seen) AS seen, max(seen_at) AS seen_at FROM memories WHERE id = ANY (%(ids)s)) AS heard
WHERE id = %(by)s

-- name: put_sourced
INSERT INTO memories (
    collection, project, source_type, content, content_hash, category, importance, session, session_ordinal, metadata,
    created_at, source_key, search
)
VALUES (
    %(collection)s, %(project)s, %(source_type)s, %(content)s, %(content_hash)s, %(category)s, %(importance)s, %(session)s,
    coalesce(%(session_ordinal)s, memory_next_ordinal(%(project)s, %(session)s)), %(metadata)s,
    coalesce(%(created_at)s, now()), %(source_key)s, memory_search_vector(%(content)s)
)
ON CONFLICT (source_key) DO UPDATE SET
    content = excluded.content,
    content_hash = excluded.content_hash,
    metadata = excluded.metadata,
    search = excluded.search,
    compared_at = NULL,
    updated_at = now()
WHERE memories.is_active AND memories.content_hash <> excluded.content_hash
-- A run store's row never changes its time: another time is the row of a copied file that has gone its own way.
AND (excluded.metadata ->> 'store_id' IS NULL OR memories.created_at = excluded.created_at)
RETURNING id, xmax = 0 AS created

-- name: add_chunks
INSERT INTO chunks (memory_id, model, ordinal, content, collection, project, is_active)
SELECT m.id, %(model)s, piece.ordinal - 1, piece.content, m.collection, m.project, m.is_active
FROM memories m, unnest(%(pieces)s::text[]) WITH ORDINALITY AS piece (content, ordinal)
WHERE m.id = %(memory_id)s

-- name: drop_chunks
DELETE FROM chunks WHERE memory_id = ANY (%(memory_ids)s)

-- name: get_memories
SELECT
    id, collection, project, source_type, content, category, importance, session, session_ordinal, metadata, source_key,
    is_active, archived, superseded_by, seen, seen_at, created_at, updated_at
FROM memories
WHERE id = ANY (%(ids)s)
ORDER BY created_at DESC, id

-- name: lock_memories
SELECT
    id, collection, project, source_type, content, category, importance, session, session_ordinal, metadata, source_key,
    is_active, archived, superseded_by, seen, seen_at, created_at, updated_at
FROM memories
WHERE id = ANY (%(ids)s)
ORDER BY id
FOR NO KEY UPDATE

-- name: sourced
SELECT source_key, content_hash, created_at FROM memories WHERE source_key = ANY (%(source_keys)s)

-- name: rename_sources
UPDATE memories m SET source_key = renamed.new
FROM unnest(%(old)s::text[], %(new)s::text[]) AS renamed (old, new)
WHERE m.source_key = renamed.old
AND NOT EXISTS (SELECT FROM memories taken WHERE taken.source_key = renamed.new)

-- name: is_embedded
SELECT count(*) > 0 AND count(*) FILTER (WHERE embedding IS NULL) = 0 FROM chunks WHERE memory_id = %(memory_id)s

-- name: supersede
WITH changed AS (
    UPDATE memories SET is_active = false, superseded_by = %(by)s, updated_at = now()
    WHERE id = ANY (%(ids)s) AND is_active
    RETURNING id
)
UPDATE chunks SET is_active = false FROM changed WHERE memory_id = changed.id AND chunks.is_active

-- name: restore
WITH changed AS (
    UPDATE memories m SET is_active = true, superseded_by = NULL, compared_at = NULL, updated_at = now()
    WHERE m.id = ANY (%(ids)s) AND NOT m.is_active AND NOT m.archived AND m.superseded_by = ANY (%(from)s)
    AND NOT (m.source_key IS NULL AND EXISTS (
        SELECT FROM memories twin
        WHERE twin.project = m.project AND twin.collection = m.collection AND twin.content_hash = m.content_hash
        AND twin.is_active AND twin.source_key IS NULL))
    RETURNING m.id
),
pieces AS (
    UPDATE chunks SET is_active = true FROM changed WHERE memory_id = changed.id
),
said_again AS (
    UPDATE memories m SET superseded_by = twin.id, updated_at = now()
    FROM memories twin
    WHERE m.id = ANY (%(ids)s) AND NOT m.is_active AND NOT m.archived AND m.superseded_by = ANY (%(from)s)
    AND m.source_key IS NULL AND twin.project = m.project AND twin.collection = m.collection
    AND twin.content_hash = m.content_hash AND twin.is_active AND twin.source_key IS NULL
)
SELECT id FROM changed

-- name: archive
WITH changed AS (
    UPDATE memories SET is_active = false, archived = true, superseded_by = NULL, updated_at = now()
    WHERE id = ANY (%(ids)s) AND NOT archived
    RETURNING id
),
pieces AS (
    UPDATE chunks SET is_active = false FROM changed WHERE memory_id = changed.id
)
SELECT id FROM changed

-- name: superseded_by
SELECT
    id, collection, project, source_type, content, category, importance, session, session_ordinal, metadata, source_key,
    is_active, archived, superseded_by, seen, seen_at, created_at, updated_at
FROM memories
WHERE superseded_by = %(id)s
ORDER BY created_at, id

-- name: hybrid_search
SELECT * FROM memory_hybrid_search(
    %(question)s, %(vector)s, %(model)s, %(project)s, %(only_project)s, %(collections)s, %(source_types)s, %(since)s,
    %(until)s, %(max_hits)s, %(min_hits)s, %(asked_at)s, %(projects)s
)

-- name: totals
SELECT
    count(*) FILTER (WHERE is_active) AS active,
    count(*) FILTER (WHERE superseded_by IS NOT NULL) AS superseded,
    count(*) FILTER (WHERE archived) AS forgotten,
    count(DISTINCT project) FILTER (WHERE is_active) AS projects
FROM memories
WHERE %(projects)s::text[] IS NULL OR project = ANY (%(projects)s)

-- name: strongest_type
SELECT asked.source_type
FROM unnest(%(source_types)s::text[]) AS asked (source_type)
CROSS JOIN LATERAL (
    SELECT weight, half_life_days FROM source_types s
    WHERE s.source_type IN (asked.source_type, '*') ORDER BY s.source_type = '*' LIMIT 1
) t
ORDER BY t.weight DESC, t.half_life_days DESC, asked.source_type
LIMIT 1
