-- name: installation_id
SELECT id FROM installation

-- name: current_model
SELECT id, dimension FROM embedding_models WHERE is_current

-- name: claim_chunks
UPDATE chunks SET lease_until = now() + make_interval(secs => %(lease)s)
WHERE id IN (
    SELECT id FROM chunks
    WHERE embedding IS NULL AND is_active AND NOT failed AND model = %(model)s
    AND (lease_until IS NULL OR lease_until < now())
    ORDER BY ordinal, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
RETURNING id, memory_id, content, attempts

-- name: write_vector
UPDATE chunks SET embedding = %(vector)s, lease_until = NULL, last_error = NULL WHERE id = %(id)s AND embedding IS NULL

-- name: release_chunks
UPDATE chunks SET lease_until = now() + make_interval(secs => %(wait)s) WHERE id = ANY (%(ids)s) AND embedding IS NULL

-- name: fail_chunk
UPDATE chunks SET
    attempts = attempts + 1,
    failed = attempts + 1 >= %(max_attempts)s,
    lease_until = now() + make_interval(secs => %(wait)s),
    last_error = %(error)s
WHERE id = %(id)s AND embedding IS NULL
RETURNING failed

-- name: pending_chunks
SELECT count(*), min(created_at) FROM chunks
WHERE embedding IS NULL AND is_active AND NOT failed AND (%(projects)s::text[] IS NULL OR project = ANY (%(projects)s))

-- name: claimable
SELECT EXISTS (
    SELECT FROM chunks
    WHERE embedding IS NULL AND is_active AND NOT failed AND (lease_until IS NULL OR lease_until < now())
)

-- name: bury
INSERT INTO dead_letters (task, subject, memory_id, payload, error, attempts)
VALUES (%(task)s, %(subject)s, %(memory_id)s, %(payload)s, %(error)s, %(attempts)s)
ON CONFLICT (task, subject) DO UPDATE SET error = excluded.error, attempts = excluded.attempts, created_at = now()

-- name: dead_letters
SELECT id, task, subject, memory_id, payload, error, attempts, created_at
FROM dead_letters
WHERE %(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s)
ORDER BY id

-- name: unbury
WITH raised AS (DELETE FROM dead_letters WHERE id = ANY (%(ids)s) RETURNING memory_id)
UPDATE chunks SET failed = false, attempts = 0, lease_until = NULL
FROM raised
WHERE chunks.memory_id = raised.memory_id AND chunks.failed

-- name: beat
INSERT INTO heartbeats (task, succeeded_at) VALUES (%(task)s, now())
ON CONFLICT (task) DO UPDATE SET succeeded_at = excluded.succeeded_at

-- name: heartbeats
SELECT task, succeeded_at FROM heartbeats ORDER BY task
