-- no-transaction
-- Recall cuts a long memory: what comes back of it is only its beginning.
CREATE INDEX CONCURRENTLY IF NOT EXISTS memories_opening ON memories (project, collection, left(content, 48) text_pattern_ops);
