-- no-transaction
-- What is still to be compared with its neighbours. Only this collection is: the rows of the others need not be passed over.
CREATE INDEX CONCURRENTLY IF NOT EXISTS memories_to_compare ON memories (created_at, id)
    WHERE is_active AND compared_at IS NULL AND collection = 'memory';
