-- name: lock_spend
SELECT pg_advisory_xact_lock(%(key)s)

-- name: reserve_spend
INSERT INTO spend (at, purpose, project, run, subject, model, calls, input_tokens, output_tokens, reserved_until)
VALUES (
    %(at)s, %(purpose)s, %(project)s, %(run)s, %(subject)s, %(model)s, %(calls)s, %(input_tokens)s, %(output_tokens)s,
    %(reserved_until)s
)
RETURNING id

-- name: settle_spend
UPDATE spend SET
    calls = %(calls)s, input_tokens = %(input_tokens)s, output_tokens = %(output_tokens)s, reserved_until = NULL
WHERE id = %(id)s

-- name: spent
SELECT
    coalesce(sum(calls), 0)::bigint AS calls,
    coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
    coalesce(sum(output_tokens), 0)::bigint AS output_tokens
FROM spend
WHERE at >= %(since)s AND at < %(since)s + interval '24 hours'
AND (%(project)s::text IS NULL OR project = %(project)s)
AND (%(run)s::text IS NULL OR run = %(run)s)
AND (reserved_until IS NULL OR reserved_until > %(now)s)

-- name: spent_by_project
SELECT project, sum(calls)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint
FROM spend
WHERE at >= %(since)s AND at < %(since)s + interval '24 hours' AND (reserved_until IS NULL OR reserved_until > %(now)s)
GROUP BY project
ORDER BY sum(input_tokens + output_tokens) DESC, project
LIMIT %(limit)s

-- name: spent_by_run
SELECT run, sum(calls)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint
FROM spend
WHERE at >= %(since)s AND at < %(since)s + interval '24 hours' AND (reserved_until IS NULL OR reserved_until > %(now)s)
GROUP BY run
ORDER BY sum(input_tokens + output_tokens) DESC, run
LIMIT %(limit)s
