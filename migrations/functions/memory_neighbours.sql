DROP FUNCTION IF EXISTS memory_neighbours(uuid, text, double precision, integer);
DROP FUNCTION IF EXISTS memory_similarity(uuid, uuid, text);

-- Pieces of active memories of the same project and collection that are at least `at_least` similar to a piece of one of
-- `of_memories`, through the model's HNSW index; at most about `most` for each of a memory's first `pieces` pieces.
--
-- First every piece asks for its nearest ones in all projects: one scan without a filter, which costs the same however small
-- the project is. Only where the list ends before the likeness does, so that others may have crowded out neighbours of the
-- own project, is it asked again within the project.
CREATE OR REPLACE FUNCTION memory_neighbours(
    of_memories uuid[], vector_model text, at_least double precision, most integer, pieces integer
) RETURNS TABLE (memory uuid, neighbour uuid, similarity double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'strict_order'
SET hnsw.ef_search = 40
SET jit = off
AS $$
DECLARE
    dimension integer := (SELECT m.dimension FROM embedding_models m WHERE m.id = vector_model);
    nearest text := format(
        $near$
        SELECT c.memory_id, c.project, c.collection, 1 - (c.embedding::halfvec(%2$s) <=> $1::halfvec(%2$s)) AS similarity
        FROM chunks c
        WHERE c.model = %1$L AND c.is_active AND c.embedding IS NOT NULL /* scope */
        ORDER BY c.embedding::halfvec(%2$s) <=> $1::halfvec(%2$s)
        LIMIT 40
        $near$,
        vector_model, dimension);
    own_project text := replace(nearest, '/* scope */', 'AND c.project = $2 AND c.collection = $3');
    piece record;
BEGIN
    FOR piece IN EXECUTE format(
        $all$
        SELECT s.memory_id, s.project, s.collection, s.embedding, found.*
        FROM chunks s
        CROSS JOIN LATERAL (
            SELECT
                array_agg(near.memory_id) FILTER (WHERE near.usable) AS ids,
                array_agg(near.similarity) FILTER (WHERE near.usable) AS similarities,
                count(*) = 40 AND min(near.similarity) >= $2 AS crowded
            FROM (
                SELECT
                    n.*,
                    n.similarity >= $2 AND n.memory_id <> s.memory_id
                    AND n.project = s.project AND n.collection = s.collection AS usable
                FROM (%1$s) n
            ) near
        ) found
        WHERE s.memory_id = ANY ($1) AND s.model = %2$L AND s.ordinal < $3 AND s.embedding IS NOT NULL
        $all$,
        replace(nearest, '$1', 's.embedding'), vector_model)
    USING of_memories, at_least, pieces
    LOOP
        IF piece.crowded AND coalesce(cardinality(piece.ids), 0) < most THEN
            RETURN QUERY EXECUTE
                'SELECT $4, n.memory_id, n.similarity FROM (' || own_project || ') n'
                ' WHERE n.similarity >= $5 AND n.memory_id <> $4'
            USING piece.embedding, piece.project, piece.collection, piece.memory_id, at_least;
        ELSE
            RETURN QUERY SELECT piece.memory_id, u.id, u.likeness FROM unnest(piece.ids, piece.similarities) AS u (id, likeness);
        END IF;
    END LOOP;
END
$$;
