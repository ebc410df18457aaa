-- Only when pgvector is loaded, as by a use of its type, may a role that is no superuser name its settings.
DO $$ BEGIN PERFORM '[1]'::halfvec; END $$;

-- Which memories a search looks at closely: the nearest by vector, with the cosine of their best chunk, and the best by
-- words, each arm served by its own index and cut off by its own LIMIT (that of the words is a quarter longer). Where both
-- find fewer than min_hits, the newest that pass the filters fill up; of a question without vector and words they are all
-- there is.
--
-- The statements are planned anew each time: an index is used only where the query repeats its cast and its condition to
-- the letter, and what a filter leaves decides which index is best.
DROP FUNCTION IF EXISTS memory_candidates(
    tsquery[], double precision[], halfvec, text, text, text[], text[], timestamptz, timestamptz, integer, integer);

CREATE OR REPLACE FUNCTION memory_candidates(
    asked tsquery[],
    selects double precision[],
    question_vector halfvec,
    vector_model text,
    in_projects text[],
    in_collections text[],
    of_types text[],
    since timestamptz,
    until timestamptz,
    arm_limit integer,
    min_hits integer
) RETURNS TABLE (id uuid, cosine double precision)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'strict_order'
SET hnsw.ef_search = 80
AS $$
DECLARE
    few CONSTANT integer := 10000;
    vector_arm CONSTANT text := $arm$
        SELECT array_agg(best.memory_id), array_agg(best.cosine), sum(best.chunks)
        FROM (
            SELECT nearby.memory_id, 1 - min(nearby.distance) AS cosine, count(*) AS chunks
            FROM (
                SELECT c.memory_id, c.embedding%3$s <=> $6%3$s AS distance
                FROM chunks c
                WHERE c.model = %1$L AND %2$s
                ORDER BY distance%4$s
                LIMIT $7
            ) AS nearby
            GROUP BY nearby.memory_id
        ) AS best
        $arm$;
    every_chunk CONSTANT text := 'c.is_active AND c.embedding IS NOT NULL';
    on_memory text := 'm.is_active';
    on_chunk text := every_chunk;
    passing integer := few + 1;
    nearest integer := arm_limit;
    words tsquery;
    compared bigint := 0;
    near uuid[];
    cosines double precision[];
    by_words uuid[];
    found uuid[];
BEGIN
    IF in_projects IS NOT NULL THEN
        on_memory := on_memory || ' AND m.project = ANY ($1)';
        on_chunk := on_chunk || ' AND c.project = ANY ($1)';
    END IF;
    IF in_collections IS NOT NULL THEN
        on_memory := on_memory || ' AND m.collection = ANY ($2)';
        on_chunk := on_chunk || ' AND c.collection = ANY ($2)';
    END IF;
    IF of_types IS NOT NULL OR since IS NOT NULL OR until IS NOT NULL THEN
        on_memory := on_memory
            || CASE WHEN of_types IS NULL THEN '' ELSE ' AND m.source_type = ANY ($3)' END
            || CASE WHEN since IS NULL THEN '' ELSE ' AND m.created_at >= $4' END
            || CASE WHEN until IS NULL THEN '' ELSE ' AND m.created_at < $5' END;
        on_chunk := on_chunk || ' AND EXISTS (SELECT FROM memories m WHERE m.id = c.memory_id AND ' || on_memory || ')';
    END IF;
    IF on_chunk <> every_chunk THEN
        EXECUTE 'SELECT count(*) FROM (SELECT FROM memories m WHERE ' || on_memory || ' LIMIT $6) AS counted'
        INTO passing USING in_projects, in_collections, of_types, since, until, few + 1;
    END IF;

    -- Few rows are all compared: that is exact, and quicker than a scan of the index that passes over most of what it meets.
    -- Such a scan also gives up at some time; what it did not find by then is looked for the same way. Without the cast of
    -- the index, the distance is computed for every row. Where most of the nearest chunks are those of a few long memories,
    -- more of them are taken, so that there is a page to choose from.
    WHILE question_vector IS NOT NULL LOOP
        IF passing > few THEN
            EXECUTE format(vector_arm, vector_model, on_chunk, format('::halfvec(%s)', vector_dims(question_vector)), '')
            INTO near, cosines, compared USING in_projects, in_collections, of_types, since, until, question_vector, nearest;
        END IF;
        IF coalesce(compared, 0) < nearest THEN
            EXECUTE format(vector_arm, vector_model, on_chunk, '', ', c.memory_id')
            INTO near, cosines, compared USING in_projects, in_collections, of_types, since, until, question_vector, nearest;
        END IF;
        EXIT WHEN coalesce(compared, 0) < nearest OR cardinality(near) >= arm_limit / 4 OR nearest >= 64 * arm_limit;
        nearest := 4 * nearest;
    END LOOP;

    words := (
        SELECT string_agg(a.word::text, ' | ')::tsquery FROM unnest(asked, selects) AS a (word, selects)
        WHERE a.selects <= CASE WHEN on_chunk = every_chunk THEN 1000 ELSE 3000 END);
    IF words IS NOT NULL THEN
        EXECUTE 'SELECT array_agg(best.id) FILTER (WHERE best.id <> ALL ($8)) FROM (SELECT m.id FROM memories m WHERE m.search @@ $6 AND ' || on_memory
            || ' ORDER BY ts_rank(m.search, $6) DESC, m.id LIMIT $7) AS best'
        INTO by_words USING in_projects, in_collections, of_types, since, until, words, arm_limit * 5 / 4, coalesce(near, '{}');
    END IF;

    RETURN QUERY SELECT * FROM unnest(near, cosines);
    RETURN QUERY SELECT unnest(by_words), NULL::double precision;
    found := coalesce(near || by_words, '{}');
    IF cardinality(found) < min_hits THEN
        RETURN QUERY EXECUTE 'SELECT m.id, NULL::double precision FROM memories m WHERE ' || on_memory
            || ' AND m.id <> ALL ($6) ORDER BY m.created_at DESC, m.id LIMIT $7'
        USING in_projects, in_collections, of_types, since, until, found, min_hits;
    END IF;
END
$$;
