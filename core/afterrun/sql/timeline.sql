-- name: timeline
-- Each side has its own limit, so that the anchor is always inside; the index `memories_scope` gives both in order.
WITH anchor AS MATERIALIZED (
    SELECT id, collection, project, session, created_at, coalesce(session_ordinal, -1) AS place
    FROM memories
    WHERE id = %(anchor)s
),
chosen AS (
    SELECT id FROM anchor
    UNION ALL
    SELECT earlier.id
    FROM anchor CROSS JOIN LATERAL (
        SELECT m.id FROM memories m
        WHERE m.is_active AND m.project = anchor.project AND m.collection = anchor.collection
        AND m.created_at <= anchor.created_at
        AND (m.created_at, coalesce(m.session_ordinal, -1), m.id) < (anchor.created_at, anchor.place, anchor.id)
        AND (NOT %(in_session)s OR m.session = anchor.session)
        ORDER BY m.created_at DESC, coalesce(m.session_ordinal, -1) DESC, m.id DESC
        LIMIT %(before)s
    ) earlier
    UNION ALL
    SELECT later.id
    FROM anchor CROSS JOIN LATERAL (
        SELECT m.id FROM memories m
        WHERE m.is_active AND m.project = anchor.project AND m.collection = anchor.collection
        AND m.created_at >= anchor.created_at
        AND (m.created_at, coalesce(m.session_ordinal, -1), m.id) > (anchor.created_at, anchor.place, anchor.id)
        AND (NOT %(in_session)s OR m.session = anchor.session)
        ORDER BY m.created_at, coalesce(m.session_ordinal, -1), m.id
        LIMIT %(after)s
    ) later
)
SELECT
    id, collection, project, source_type, content, category, importance, session, session_ordinal, metadata, source_key,
    is_active, archived, superseded_by, seen, seen_at, created_at, updated_at
FROM memories JOIN chosen USING (id)
ORDER BY created_at, coalesce(session_ordinal, -1), id
