-- Who may come in over the network, and which batches of events came in already.

-- Of a key's secret only its SHA-256 is kept. `projects` are those that the key reads and writes, none of them: all. With
-- `reads_global` it reads the project that all share, too. A revoked key stays, so that its id is never given again and a
-- server that asks for keys does not stop asking.
CREATE TABLE api_keys (
    id text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{12}$'),
    name text NOT NULL CHECK (name <> ''),
    secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    scopes text[] NOT NULL CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'write', 'admin']),
    projects text[] NOT NULL DEFAULT '{}',
    reads_global boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz
);

-- The answers to requests with an Idempotency-Key: the same request again gets the same receipts. `owner` is the id of the
-- API key, or empty for requests without one; `digest` is of the events. Rows are dropped after some days.
CREATE TABLE event_requests (
    owner text NOT NULL,
    idempotency_key text NOT NULL,
    digest bytea NOT NULL,
    receipts uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, idempotency_key)
);
CREATE INDEX event_requests_age ON event_requests (created_at);
