-- no-transaction
-- memories_to_compare has taken its place.
DROP INDEX CONCURRENTLY IF EXISTS memories_uncompared;
