-- name: uncompared
SELECT m.id FROM memories m
WHERE m.is_active AND m.compared_at IS NULL AND m.collection = 'memory'
AND NOT EXISTS (
    SELECT FROM chunks c WHERE c.memory_id = m.id AND c.model = %(model)s AND c.embedding IS NULL AND NOT c.failed
)
ORDER BY m.created_at, m.id
LIMIT %(limit)s
FOR UPDATE OF m SKIP LOCKED

-- name: mark_compared
UPDATE memories SET compared_at = now() WHERE id = ANY (%(ids)s)

-- name: neighbours
SELECT id, similarity FROM memory_neighbours(%(memory_id)s, %(model)s, %(at_least)s, %(most)s)

-- name: similarities
SELECT a, b, memory_similarity(a, b, %(model)s)
FROM unnest(%(ids)s::uuid[]) AS a, unnest(%(ids)s::uuid[]) AS b
WHERE a < b

-- name: propose
INSERT INTO consolidations (members_hash, collection, project, members)
VALUES (%(members_hash)s, %(collection)s, %(project)s, %(members)s)
ON CONFLICT (members_hash) DO NOTHING
RETURNING id

-- name: claim_consolidation
UPDATE consolidations
SET not_before = now() + make_interval(secs => %(lease)s), attempts = attempts + 1, updated_at = now()
WHERE members_hash = %(members_hash)s AND state = 'waiting' AND not_before <= now() AND model IS DISTINCT FROM %(judge)s
RETURNING id, attempts, invalid_answers

-- name: waiting_consolidations
SELECT members FROM consolidations
WHERE state = 'waiting' AND not_before <= now() AND model IS DISTINCT FROM %(judge)s
ORDER BY not_before
LIMIT %(limit)s

-- name: settle_consolidation
UPDATE consolidations SET
    state = %(state)s,
    canonical = %(canonical)s,
    superseded = %(superseded)s,
    model = %(judge)s,
    calls = calls + %(calls)s,
    input_tokens = input_tokens + %(input_tokens)s,
    output_tokens = output_tokens + %(output_tokens)s,
    guard = %(guard)s,
    reason = %(reason)s,
    not_before = now(),
    updated_at = now()
WHERE id = %(id)s

-- name: postpone_consolidation
UPDATE consolidations SET
    state = %(state)s,
    not_before = now() + make_interval(secs => %(wait)s),
    reason = %(reason)s,
    invalid_answers = invalid_answers + %(invalid)s::integer,
    calls = calls + %(calls)s,
    input_tokens = input_tokens + %(input_tokens)s,
    output_tokens = output_tokens + %(output_tokens)s,
    updated_at = now()
WHERE id = %(id)s

-- name: consolidations
SELECT
    id, state, collection, project, members, canonical, model, input_tokens, output_tokens, reason, guard, created_at,
    updated_at
FROM consolidations
WHERE (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s))
AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
AND (%(memory_id)s::uuid IS NULL OR canonical = %(memory_id)s OR %(memory_id)s = ANY (members))
ORDER BY created_at DESC, id
LIMIT %(limit)s

-- name: lock_consolidation
SELECT
    id, state, collection, project, members, canonical, model, input_tokens, output_tokens, reason, guard, created_at,
    updated_at
FROM consolidations
WHERE id = %(id)s
FOR UPDATE

-- name: merged_away
SELECT superseded FROM consolidations WHERE id = %(id)s

-- name: set_consolidation_state
UPDATE consolidations SET state = %(state)s, updated_at = now() WHERE id = %(id)s

-- name: consolidation_totals
SELECT state, count(*), sum(calls), sum(input_tokens), sum(output_tokens) FROM consolidations GROUP BY state
