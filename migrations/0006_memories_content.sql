-- no-transaction
-- A text that is remembered again is recognised, also where it is a run's, or has been merged into another memory.
CREATE INDEX CONCURRENTLY IF NOT EXISTS memories_content ON memories (content_hash);
