-- name: propose
INSERT INTO consolidations (members_hash, collection, project, members)
VALUES (%(members_hash)s, %(collection)s, %(project)s, %(members)s)
ON CONFLICT (members_hash) DO NOTHING
RETURNING id

-- name: claim_consolidation
UPDATE consolidations SET
    leased_until = now() + make_interval(secs => %(lease)s), attempts = attempts + 1, waits_for = NULL, updated_at = now()
WHERE members_hash = %(members_hash)s AND state = 'waiting' AND model IS DISTINCT FROM %(judge)s
AND (not_before <= now() OR %(early)s) AND (leased_until IS NULL OR leased_until <= now())
RETURNING id, attempts, invalid_answers, similarity, leased_until

-- name: waiting_consolidations
SELECT members FROM consolidations
WHERE state = 'waiting' AND not_before <= now() AND model IS DISTINCT FROM %(judge)s
AND (leased_until IS NULL OR leased_until <= now())
ORDER BY similarity DESC NULLS FIRST, not_before
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
    leased_until = NULL,
    waits_for = NULL,
    updated_at = now()
WHERE id = %(id)s

-- name: hold_consolidation
SELECT true FROM consolidations WHERE id = %(id)s AND state = 'waiting' AND leased_until = %(leased_until)s FOR UPDATE

-- name: postpone_consolidation
UPDATE consolidations SET
    state = %(state)s,
    not_before = now() + make_interval(secs => %(wait)s),
    leased_until = NULL,
    waits_for = %(waits_for)s,
    reason = %(reason)s,
    attempts = attempts - %(uncounted)s::integer,
    invalid_answers = invalid_answers + %(invalid)s::integer,
    calls = calls + %(calls)s,
    input_tokens = input_tokens + %(input_tokens)s,
    output_tokens = output_tokens + %(output_tokens)s,
    updated_at = now()
WHERE id = %(id)s

-- name: pause_consolidations
UPDATE consolidations SET
    not_before = now() + make_interval(secs => %(wait)s), waits_for = %(waits_for)s, reason = %(reason)s, updated_at = now()
WHERE state = 'waiting' AND model IS DISTINCT FROM %(judge)s AND not_before < now() + make_interval(secs => %(wait)s)
AND (leased_until IS NULL OR leased_until <= now())

-- name: resume_consolidations
UPDATE consolidations SET not_before = now(), waits_for = NULL WHERE state = 'waiting' AND not_before > now()

-- name: drop_stale_consolidation
UPDATE consolidations SET state = 'failed', waits_for = NULL, reason = %(reason)s, updated_at = now()
WHERE members_hash = %(members_hash)s AND state = 'waiting' AND (leased_until IS NULL OR leased_until <= now())
RETURNING true

-- name: stale_consolidations
SELECT members FROM consolidations c
WHERE state = 'waiting' AND (leased_until IS NULL OR leased_until <= now())
AND EXISTS (SELECT FROM memories m WHERE m.id = ANY (c.members) AND NOT m.is_active)
ORDER BY members
LIMIT %(limit)s

-- name: count_uncompared
SELECT count(*) FROM memories WHERE is_active AND compared_at IS NULL AND collection = 'memory'

-- name: waiting_for
SELECT waits_for, count(*) FROM consolidations
WHERE state = 'waiting' AND waits_for IS NOT NULL AND not_before > now()
GROUP BY waits_for

-- name: consolidations
SELECT
    id, state, collection, project, members, canonical, model, input_tokens, output_tokens, reason, guard, created_at,
    updated_at
FROM consolidations
WHERE (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s))
AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
AND (%(memory_id)s::uuid IS NULL OR canonical = %(memory_id)s OR members @> ARRAY[%(memory_id)s::uuid])
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
UPDATE consolidations SET state = %(state)s, reason = coalesce(%(reason)s, reason), updated_at = now() WHERE id = %(id)s

-- name: consolidation_totals
SELECT state, count(*), sum(calls), sum(input_tokens), sum(output_tokens) FROM consolidations GROUP BY state
