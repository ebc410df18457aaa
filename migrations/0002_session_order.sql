-- no-transaction
-- The end of a session, where a memory goes whose writer names no place, and what stands around a memory in it.
CREATE INDEX CONCURRENTLY IF NOT EXISTS memories_session ON memories (project, session, session_ordinal) WHERE session IS NOT NULL;
