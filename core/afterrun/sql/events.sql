-- name: lock_projects
SELECT pg_advisory_xact_lock(ordered.key)
FROM (SELECT hashtextextended(project, 0) AS key FROM unnest(%(projects)s::text[]) AS project ORDER BY key) AS ordered

-- name: claim_request
INSERT INTO event_requests (owner, idempotency_key, digest, receipts)
VALUES (%(owner)s, %(idempotency_key)s, %(digest)s, '{}')
ON CONFLICT (owner, idempotency_key) DO NOTHING
RETURNING true

-- name: earlier_request
SELECT digest, receipts FROM event_requests WHERE owner = %(owner)s AND idempotency_key = %(idempotency_key)s

-- name: answer_request
UPDATE event_requests SET receipts = %(receipts)s WHERE owner = %(owner)s AND idempotency_key = %(idempotency_key)s

-- name: drop_old_requests
DELETE FROM event_requests
WHERE (owner, idempotency_key) IN (
    SELECT owner, idempotency_key FROM event_requests
    WHERE created_at < now() - make_interval(secs => %(older_than)s)
    ORDER BY created_at
    LIMIT 100
    FOR UPDATE SKIP LOCKED
)

-- name: event_progress
SELECT
    m.project, m.is_active, m.archived,
    count(c.id) AS chunks,
    count(c.id) FILTER (WHERE c.embedding IS NULL) AS pending,
    count(c.id) FILTER (WHERE c.embedding IS NULL AND c.failed) AS failed
FROM memories m
LEFT JOIN chunks c ON c.memory_id = m.id AND c.model = (SELECT id FROM embedding_models WHERE is_current)
WHERE m.id = %(id)s
GROUP BY m.id
