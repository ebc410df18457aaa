-- name: read_windows
SELECT digest, memories FROM session_windows WHERE digest = ANY (%(digests)s)

-- name: put_window
INSERT INTO session_windows (digest, project, session, extractor, memories)
VALUES (%(digest)s, %(project)s, %(session)s, %(extractor)s, %(memories)s)
ON CONFLICT (digest) DO UPDATE SET memories = excluded.memories, read_at = now()
