-- name: lock_source
SELECT pg_advisory_xact_lock(hashtextextended(%(project)s || E'\x1f' || %(source)s, 0))

-- name: source_files
SELECT path, size, modified_ns, digest, reader, skipped, pieces, etag, last_modified
FROM source_files
WHERE project = %(project)s AND source = %(source)s AND path = ANY (%(paths)s)

-- name: source_paths
SELECT path FROM source_files
WHERE project = %(project)s AND source = %(source)s AND starts_with(path, %(beginning)s) AND path > %(after)s
ORDER BY path
LIMIT %(limit)s

-- name: put_source_file
INSERT INTO source_files (
    project, source, path, size, modified_ns, digest, reader, skipped, pieces, etag, last_modified
)
VALUES (
    %(project)s, %(source)s, %(path)s, %(size)s, %(modified_ns)s, %(digest)s, %(reader)s, %(skipped)s, %(pieces)s, %(etag)s,
    %(last_modified)s
)
ON CONFLICT (project, source, path) DO UPDATE SET
    size = excluded.size,
    modified_ns = excluded.modified_ns,
    digest = excluded.digest,
    reader = excluded.reader,
    skipped = excluded.skipped,
    pieces = excluded.pieces,
    etag = excluded.etag,
    last_modified = excluded.last_modified,
    indexed_at = now()

-- name: touch_source_file
UPDATE source_files SET size = %(size)s, modified_ns = %(modified_ns)s
WHERE project = %(project)s AND source = %(source)s AND path = %(path)s AND digest = %(digest)s

-- name: drop_source_files
DELETE FROM source_files WHERE project = %(project)s AND source = %(source)s AND path = ANY (%(paths)s)

-- name: held_pieces
SELECT id, source_key, content, archived, session_ordinal, metadata FROM memories WHERE source_key = ANY (%(keys)s)

-- name: put_piece
INSERT INTO memories (
    collection, project, source_type, content, content_hash, category, importance, session, session_ordinal, metadata,
    created_at, source_key, search
)
VALUES (
    %(collection)s, %(project)s, %(source_type)s, %(content)s, %(content_hash)s, %(category)s, %(importance)s, %(session)s,
    %(session_ordinal)s, %(metadata)s, coalesce(%(created_at)s, now()), %(source_key)s, memory_search_vector(%(content)s)
)
ON CONFLICT (source_key) DO UPDATE SET
    content = excluded.content,
    content_hash = excluded.content_hash,
    session = excluded.session,
    session_ordinal = excluded.session_ordinal,
    metadata = excluded.metadata,
    created_at = excluded.created_at,
    search = excluded.search,
    updated_at = now()
WHERE memories.is_active
RETURNING id

-- name: free_keys
UPDATE memories SET source_key = 'moving:' || id WHERE id = ANY (%(ids)s)

-- name: place_piece
UPDATE memories
SET source_key = %(source_key)s, session_ordinal = %(session_ordinal)s, metadata = %(metadata)s
WHERE id = %(id)s AND NOT EXISTS (SELECT FROM memories taken WHERE taken.source_key = %(source_key)s AND taken.id <> %(id)s)
RETURNING id

-- name: delete_pieces
WITH gone AS (
    DELETE FROM memories WHERE source_key = ANY (%(keys)s) AND NOT archived RETURNING id
)
SELECT count(*) FROM gone

-- name: delete_source
WITH files AS (
    DELETE FROM source_files WHERE project = %(project)s AND source = %(source)s
),
gone AS (
    DELETE FROM memories
    WHERE project = %(project)s AND collection = %(collection)s AND NOT archived
    AND starts_with(source_key, %(source)s || ':')
    RETURNING id
)
SELECT count(*) FROM gone
