-- How alike two memories are in all they say: every chunk of each has a counterpart in the other at least this similar.
CREATE OR REPLACE FUNCTION memory_similarity(one uuid, other uuid, vector_model text) RETURNS double precision
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    WITH pairs AS (
        SELECT a.ordinal AS a, b.ordinal AS b, 1 - (a.embedding <=> b.embedding) AS similarity
        FROM chunks a
        JOIN chunks b ON b.memory_id = other AND b.model = vector_model AND b.embedding IS NOT NULL
        WHERE a.memory_id = one AND a.model = vector_model AND a.embedding IS NOT NULL
    )
    SELECT least(
        (SELECT min(best) FROM (SELECT max(similarity) AS best FROM pairs GROUP BY a) AS of_one),
        (SELECT min(best) FROM (SELECT max(similarity) AS best FROM pairs GROUP BY b) AS of_other))
$$;

-- The active memories of the same project and collection that are at least `at_least` similar to `of_memory`, nearest first.
-- Found through the model's HNSW index by the memory's first chunk, then compared whole.
CREATE OR REPLACE FUNCTION memory_neighbours(of_memory uuid, vector_model text, at_least double precision, most integer)
RETURNS TABLE (id uuid, similarity double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'strict_order'
SET jit = off
AS $$
DECLARE
    first chunks;
    dimension integer;
BEGIN
    SELECT * INTO first FROM chunks c
    WHERE c.memory_id = of_memory AND c.model = vector_model AND c.embedding IS NOT NULL ORDER BY c.ordinal LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    dimension := vector_dims(first.embedding);
    RETURN QUERY EXECUTE format(
        $near$
        WITH near AS MATERIALIZED (
            SELECT c.memory_id, c.embedding::halfvec(%2$s) <=> $1::halfvec(%2$s) AS distance
            FROM chunks c
            WHERE c.model = %1$L AND c.is_active AND c.embedding IS NOT NULL AND c.project = $2 AND c.collection = $3
            ORDER BY c.embedding::halfvec(%2$s) <=> $1::halfvec(%2$s)
            LIMIT $5 + 1
        )
        SELECT alike.memory_id, alike.similarity
        FROM (
            SELECT DISTINCT near.memory_id, memory_similarity($4, near.memory_id, %1$L) AS similarity
            FROM near WHERE near.memory_id <> $4 AND near.distance <= 1 - $6
        ) AS alike
        WHERE alike.similarity >= $6
        ORDER BY alike.similarity DESC, alike.memory_id
        $near$,
        vector_model, dimension)
    USING first.embedding, first.project, first.collection, of_memory, most, at_least;
END
$$;
