-- The one function of recall: candidates by vector and by words, each arm served by its own index and cut off by its own
-- LIMIT; then relevance, age, type and project together decide the order.
--
--   relevance  half the cosine of the memory's best chunk, half the rank of its words, each relative to the best candidate
--   raw        decay x weight x affinity, with the constants of source_types and below
--   score      relevance x exp(gamma x ln(raw) / (1 + |ln(raw)|)), gamma = 0.15: monotone in raw, and bounded to 0.86 .. 1.16,
--              so that age and type order what is alike in relevance and never drown what is relevant
--
-- Without a vector (no model at hand) words alone find; without words the vector alone does; an empty question is answered
-- newest first. Where both arms find fewer than min_hits rows, the newest rows that pass the filters fill up.
DO $$
DECLARE old regprocedure;
BEGIN
    FOR old IN SELECT oid FROM pg_proc WHERE proname = 'memory_hybrid_search' AND pronamespace = current_schema()::regnamespace
    LOOP
        EXECUTE 'DROP FUNCTION ' || old;
    END LOOP;
END
$$;

CREATE FUNCTION memory_hybrid_search(
    question text,
    question_vector halfvec DEFAULT NULL,
    vector_model text DEFAULT NULL,
    for_project text DEFAULT NULL,
    only_project boolean DEFAULT false,
    in_collections text[] DEFAULT NULL,
    of_types text[] DEFAULT NULL,
    since timestamptz DEFAULT NULL,
    until timestamptz DEFAULT NULL,
    max_hits integer DEFAULT 20,
    min_hits integer DEFAULT 5,
    asked_at timestamptz DEFAULT now()
) RETURNS TABLE (
    id uuid, content text, collection text, project text, source_type text, category text, metadata jsonb,
    created_at timestamptz, score double precision, relevance double precision, vector double precision,
    text double precision, decay double precision, weight double precision, affinity double precision
)
LANGUAGE plpgsql STABLE
SET hnsw.iterative_scan = 'strict_order'
SET hnsw.ef_search = 100
SET jit = off
AS $$
DECLARE
    words tsquery := memory_search_query(question);
    arm_limit integer := greatest(4 * max_hits, 60);
    on_memory text := 'm.is_active';
    on_chunk text := 'c.is_active AND c.embedding IS NOT NULL';
    vector_arm text := 'SELECT NULL::uuid AS id WHERE false';
    word_arm text := 'SELECT NULL::uuid AS id WHERE false';
    similarity text := 'NULL::double precision';
    newest boolean;
BEGIN
    IF only_project AND for_project IS NOT NULL THEN
        on_memory := on_memory || ' AND m.project = $3';
        on_chunk := on_chunk || ' AND c.project = $3';
    END IF;
    IF in_collections IS NOT NULL THEN
        on_memory := on_memory || ' AND m.collection = ANY ($4)';
        on_chunk := on_chunk || ' AND c.collection = ANY ($4)';
    END IF;
    IF of_types IS NOT NULL OR since IS NOT NULL OR until IS NOT NULL THEN
        on_memory := on_memory
            || CASE WHEN of_types IS NULL THEN '' ELSE ' AND m.source_type = ANY ($5)' END
            || CASE WHEN since IS NULL THEN '' ELSE ' AND m.created_at >= $6' END
            || CASE WHEN until IS NULL THEN '' ELSE ' AND m.created_at < $7' END;
        on_chunk := on_chunk || ' AND EXISTS (SELECT FROM memories m WHERE m.id = c.memory_id AND ' || on_memory || ')';
    END IF;

    IF question_vector IS NOT NULL THEN
        -- The index is used only where the query repeats its cast and its condition to the letter.
        vector_arm := format(
            'SELECT c.memory_id AS id FROM chunks c WHERE c.model = %1$L AND %2$s'
            ' ORDER BY c.embedding::halfvec(%3$s) <=> $1::halfvec(%3$s) LIMIT $8',
            vector_model, on_chunk, vector_dims(question_vector));
        similarity := format(
            '(SELECT 1 - min(c.embedding::halfvec(%2$s) <=> $1::halfvec(%2$s)) FROM chunks c'
            ' WHERE c.memory_id = m.id AND c.model = %1$L AND c.embedding IS NOT NULL)',
            vector_model, vector_dims(question_vector));
    END IF;
    IF words IS NOT NULL THEN
        word_arm := format(
            'SELECT m.id FROM memories m WHERE m.search @@ $2 AND %s ORDER BY ts_rank(m.search, $2) DESC, m.id LIMIT $8',
            on_memory);
    END IF;
    newest := question_vector IS NULL AND words IS NULL;

    RETURN QUERY EXECUTE format(
        $search$
        WITH found AS MATERIALIZED ((%s) UNION (%s)),
        candidates AS (
            SELECT found.id FROM found
            UNION
            (SELECT m.id FROM memories m
             WHERE %s AND ($10 OR (SELECT count(*) FROM found) < $9)
             ORDER BY m.created_at DESC, m.id LIMIT CASE WHEN $10 THEN $11 ELSE $9 END)
        ),
        scored AS MATERIALIZED (
            SELECT
                m.*,
                %s AS cosine,
                coalesce(ts_rank(m.search, $2), 0) AS rank,
                power(0.5, greatest(extract(epoch FROM $12 - m.created_at), 0) / 86400 / t.half_life_days) AS decay,
                t.weight,
                CASE WHEN $3 IS NULL THEN 1.0 WHEN m.project = $3 THEN 1.5 WHEN m.project = 'global' THEN 1.0 ELSE 0.7 END AS affinity
            FROM candidates
            JOIN memories m ON m.id = candidates.id
            CROSS JOIN LATERAL (
                SELECT s.half_life_days, s.weight FROM source_types s
                WHERE s.source_type IN (m.source_type, '*') ORDER BY s.source_type = '*' LIMIT 1
            ) t
            WHERE m.is_active
        ),
        related AS (
            SELECT
                s.*,
                ( coalesce(greatest(s.cosine, 0) / nullif(max(s.cosine) OVER (), 0), 0)
                + coalesce(s.rank / nullif(max(s.rank) OVER (), 0), 0)) / 2 AS relevance,
                ln(greatest(s.decay * s.weight * s.affinity, 1e-300)) AS raw
            FROM scored s
        )
        SELECT
            r.id, r.content, r.collection, r.project, r.source_type, r.category, r.metadata, r.created_at,
            r.relevance * exp(0.15 * r.raw / (1 + abs(r.raw))),
            r.relevance, r.cosine, nullif(r.rank, 0)::double precision / nullif(max(r.rank) OVER (), 0),
            -- Fix 1: tiered recency decay by source_type
            r.decay,
            -- Fix 3: source_type weighting
            r.weight,
            -- Fix 5: project affinity scoring
            r.affinity::double precision
        FROM related r
        ORDER BY CASE WHEN $10 THEN 0 ELSE r.relevance * exp(0.15 * r.raw / (1 + abs(r.raw))) END DESC, r.created_at DESC, r.id
        LIMIT $11
        $search$,
        vector_arm, word_arm, on_memory, similarity)
    USING
        question_vector, words, for_project, in_collections, of_types, since, until, arm_limit, min_hits, newest, max_hits, asked_at;
END
$$;
