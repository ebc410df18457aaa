-- no-transaction
-- A search for a rare type looks at its memories only.
CREATE INDEX CONCURRENTLY IF NOT EXISTS memories_source_type ON memories (source_type, created_at DESC) WHERE is_active;
