-- no-transaction
-- Which clusters a memory has been in: for its history, and so that no pair of memories is proposed twice.
CREATE INDEX CONCURRENTLY IF NOT EXISTS consolidations_members ON consolidations USING gin (members);
