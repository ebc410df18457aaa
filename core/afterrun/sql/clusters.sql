-- name: uncompared
SELECT m.id FROM memories m
WHERE m.is_active AND m.compared_at IS NULL AND m.collection = 'memory'
AND NOT EXISTS (
    SELECT FROM chunks c
    WHERE c.memory_id = m.id AND c.model = %(model)s AND c.embedding IS NULL AND c.is_active AND NOT c.failed
)
ORDER BY m.created_at, m.id
LIMIT %(limit)s
FOR NO KEY UPDATE OF m SKIP LOCKED

-- name: without_pending
SELECT seed FROM unnest(%(ids)s::uuid[]) AS seed
WHERE NOT EXISTS (
    SELECT FROM chunks c
    WHERE c.memory_id = seed AND c.model = %(model)s AND c.embedding IS NULL AND c.is_active AND NOT c.failed
)

-- name: mark_compared
UPDATE memories SET compared_at = now() WHERE id = ANY (%(ids)s)

-- name: compare_again
UPDATE memories SET compared_at = NULL WHERE id = ANY (%(ids)s) AND is_active

-- name: neighbours
SELECT memory, neighbour
FROM memory_neighbours(%(ids)s, %(model)s, %(at_least)s, %(most)s, %(pieces)s)
GROUP BY memory, neighbour
ORDER BY memory, max(similarity) DESC, neighbour

-- name: candidates
SELECT
    id, collection, project, source_type, metadata ->> 'tier' AS tier, metadata -> 'generation' AS generation,
    updated_at
FROM memories
WHERE id = ANY (%(ids)s)
-- A roll-up says again what its runs say, which stay: neither is merged into the other.
AND coalesce(metadata ->> 'tier', '') NOT IN ('monthly', 'quarterly')

-- name: vectors
SELECT memory_id, embedding FROM chunks
WHERE memory_id = ANY (%(ids)s) AND model = %(model)s AND ordinal < %(pieces)s AND embedding IS NOT NULL
ORDER BY memory_id, ordinal

-- name: proposed_with
SELECT members, state, updated_at FROM consolidations WHERE members && %(ids)s::uuid[]

-- name: propose_near
INSERT INTO consolidations (members_hash, collection, project, members, similarity)
VALUES (%(members_hash)s, %(collection)s, %(project)s, %(members)s, %(similarity)s)
-- The same members again: the text of one has changed since.
ON CONFLICT (members_hash) DO UPDATE SET
    state = 'waiting', model = NULL, guard = NULL, reason = NULL, attempts = 0, invalid_answers = 0,
    waits_for = NULL,
    similarity = excluded.similarity, not_before = now(), updated_at = now()
WHERE consolidations.state IN ('waiting', 'related', 'failed')
AND (consolidations.leased_until IS NULL OR consolidations.leased_until <= now())
RETURNING id
