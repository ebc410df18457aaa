-- name: add_key
INSERT INTO api_keys (id, name, secret_hash, scopes, projects, reads_global, expires_at)
VALUES (%(id)s, %(label)s, %(secret_hash)s, %(scopes)s, %(projects)s, %(reads_global)s, %(expires_at)s)
RETURNING id, name, scopes, projects, reads_global, created_at, expires_at, last_used_at, revoked_at

-- name: keys
SELECT id, name, scopes, projects, reads_global, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
ORDER BY created_at, id

-- name: has_keys
SELECT EXISTS (SELECT FROM api_keys)

-- name: usable_key
SELECT secret_hash, scopes, projects, reads_global
FROM api_keys
WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

-- name: key_used
UPDATE api_keys SET last_used_at = now()
WHERE id = %(id)s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')

-- name: revoke_key
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
WHERE id = %(id)s
RETURNING id, name, scopes, projects, reads_global, created_at, expires_at, last_used_at, revoked_at
