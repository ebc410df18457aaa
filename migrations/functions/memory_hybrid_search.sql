-- The one function of recall: for the candidates that vectors and words nominate (memory_candidates), relevance, age, type
-- and project together decide the order.
--
--   text       BM25 over the question's words (memory_question), k1 = 1 and b = 0.4. The frequency of a word in a text counts
--              1 + 1/4 + 1/9 + ..., as ts_rank has it. A word that stands not in the memory but in another candidate,
--              its neighbour in the session, counts half, and half of that in the one beyond: what is said next to a text
--              says what it is about.
--   vector     the cosine of the memory's best chunk
--   relevance  0.6 text + 0.4 vector, each relative to the best candidate; in code, whose words are seldom those of a
--              question, 0.2 text + 0.8 vector
--   raw        decay x weight x affinity, with the constants of source_types and below
--   score      relevance x exp(0.08 x ln(raw) / (0.25 + |ln(raw)|)): monotone in raw, and bounded to 0.92 .. 1.08,
--              so that age and type order what is alike in relevance and never drown what is relevant
--
-- Where the numbers come from: docs/decisions/0005-score.md.
-- Without a vector (no model at hand) words alone find; without words the vector alone does; an empty question is answered
-- newest first.
DO $$
DECLARE old regprocedure;
BEGIN
    FOR old IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE p.proname = 'memory_hybrid_search' AND n.nspname = current_schema()
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
    asked_at timestamptz DEFAULT now(),
    in_projects text[] DEFAULT NULL
) RETURNS TABLE (
    id uuid, content text, collection text, project text, source_type text, category text, metadata jsonb,
    created_at timestamptz, score double precision, relevance double precision, vector double precision,
    text double precision, decay double precision, weight double precision, affinity double precision
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    asked tsquery[];
    tells double precision[];
    pairs boolean[];
    selects double precision[];
    any_word tsquery;
    newest boolean;
    searched text[] := in_projects;
    found uuid[];
    cosines double precision[];
BEGIN
    SELECT
        array_agg(q.word), array_agg(q.tells), array_agg(q.pair), array_agg(q.selects),
        string_agg(q.word::text, ' | ') FILTER (WHERE NOT q.pair)::tsquery
    INTO asked, tells, pairs, selects, any_word
    FROM memory_question(question) AS q;
    newest := question_vector IS NULL AND any_word IS NULL;
    IF only_project AND for_project IS NOT NULL THEN
        searched := array(SELECT for_project WHERE in_projects IS NULL OR for_project = ANY (in_projects));
    END IF;
    SELECT array_agg(c.id), array_agg(c.cosine) INTO found, cosines
    FROM memory_candidates(
        asked, selects, question_vector, vector_model, searched, in_collections, of_types, since, until,
        greatest(4 * max_hits, 80), CASE WHEN newest THEN max_hits ELSE min_hits END) AS c;

    RETURN QUERY
    WITH candidates AS MATERIALIZED (
        SELECT
            m.id, m.collection, m.project, m.source_type, m.session, m.session_ordinal, m.created_at, m.search,
            -- A vector of zeros has no direction, and NaN for a cosine.
            nullif(coalesce(listed.cosine, (
                SELECT 1 - min(c.embedding <=> question_vector) FROM chunks c
                WHERE c.memory_id = m.id AND c.model = vector_model AND c.embedding IS NOT NULL)), 'NaN') AS cosine
        FROM unnest(found, cosines) AS listed (id, cosine) JOIN memories m USING (id)
        WHERE m.is_active
    ),
    matches AS MATERIALIZED (
        SELECT c.id, a.place, a.tells * 2 * f.frequency / (f.frequency + 0.6 + 0.4 * c.size) AS worth
        FROM (SELECT id, search, length(search) / avg(length(search)) OVER () AS size FROM candidates WHERE search @@ any_word) AS c
        CROSS JOIN unnest(asked, tells, pairs) WITH ORDINALITY AS a (word, tells, pair, place)
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN NOT a.pair THEN ts_rank('{1, 1, 1, 1}', c.search, a.word) * 1.64493406685
                WHEN c.search @@ a.word THEN 1
                ELSE 0
            END AS frequency
        ) AS f
        WHERE f.frequency > 0
    ),
    views AS (
        SELECT c.id, c.id AS source, 1.0::double precision AS share FROM candidates c
        UNION ALL
        SELECT c.id, n.id, power(0.5, greatest(abs(n.session_ordinal::bigint - c.session_ordinal), 1))
        FROM candidates c
        JOIN candidates n ON n.project = c.project AND n.session = c.session
            AND n.session_ordinal BETWEEN c.session_ordinal::bigint - 2 AND c.session_ordinal::bigint + 2
        WHERE n.id <> c.id
    ),
    texts AS (
        SELECT best.id, sum(best.worth) AS worth
        FROM (
            SELECT v.id, w.place, max(v.share * w.worth) AS worth
            FROM views v JOIN matches w ON w.id = v.source
            GROUP BY v.id, w.place
        ) AS best
        GROUP BY best.id
    ),
    -- Users edit source_types: whatever stands there, or no longer does, neither fails a search nor hides a memory.
    types AS MATERIALIZED (
        SELECT
            used.source_type,
            least(greatest(coalesce(t.half_life_days, 30), 1e-6), 1e9) AS half_life_days,
            least(greatest(coalesce(t.weight, 1), 1e-6), 1e6) AS weight
        FROM (SELECT DISTINCT c.source_type FROM candidates c) AS used
        LEFT JOIN LATERAL (
            SELECT s.half_life_days, s.weight FROM source_types s
            WHERE s.source_type IN (used.source_type, '*') ORDER BY s.source_type = '*' LIMIT 1
        ) AS t ON true
    ),
    parts AS (
        SELECT
            c.id, c.created_at, c.cosine,
            CASE c.collection WHEN 'codebase' THEN 0.2::double precision ELSE 0.6 END AS text_share,
            x.worth / nullif(max(x.worth) OVER (), 0) AS of_text,
            greatest(c.cosine, 0) / nullif(max(c.cosine) OVER (), 0) AS of_vector,
            -- Postgres refuses powers too small for a double.
            power(0.5, least(greatest(extract(epoch FROM asked_at - c.created_at), 0) / 86400 / t.half_life_days, 1000)) AS decay,
            t.weight,
            CASE WHEN for_project IS NULL THEN 1.0 WHEN c.project = for_project THEN 1.5 WHEN c.project = 'global' THEN 1.0 ELSE 0.7
                END::double precision AS affinity
        FROM candidates c
        JOIN types t USING (source_type)
        LEFT JOIN texts x USING (id)
    ),
    rated AS (
        SELECT
            p.*,
            p.text_share * coalesce(p.of_text, 0) + (1 - p.text_share) * coalesce(p.of_vector, 0) AS relevance,
            ln(p.decay * p.weight * p.affinity) AS raw
        FROM parts p
    ),
    best AS (
        SELECT r.*, r.relevance * exp(0.08 * r.raw / (0.25 + abs(r.raw))) AS score
        FROM rated r
        ORDER BY CASE WHEN newest THEN 0 ELSE r.relevance * exp(0.08 * r.raw / (0.25 + abs(r.raw))) END DESC, r.created_at DESC, r.id
        LIMIT max_hits
    )
    SELECT
        m.id, m.content, m.collection, m.project, m.source_type, m.category, m.metadata, m.created_at,
        b.score, b.relevance, b.cosine, b.of_text,
        -- Fix 1: tiered recency decay by source_type
        b.decay,
        -- Fix 3: source_type weighting
        b.weight,
        -- Fix 5: project affinity scoring
        b.affinity
    FROM best b JOIN memories m USING (id)
    ORDER BY CASE WHEN newest THEN 0 ELSE b.score END DESC, b.created_at DESC, b.id;
END
$$;
