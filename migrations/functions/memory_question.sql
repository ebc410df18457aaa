-- What a question asks for, each with how much it tells: its words, and pairs of words that stand next to each other
-- (`pair`; the 16 that tell most). A word tells its idf, the logarithm of how rare it is among the memories, as BM25 has it;
-- a pair half of what its words tell on average.
--
-- How rare a word is says the last ANALYZE; of a word that it does not list it is known only that it is rarer than all that
-- it lists. In a table that was never analysed, or emptied since, rows are counted, up to 1,000 for each word. Of a question
-- with more than 256 words (64 where rows are counted) the longest are asked, which tend to be rare.
--
-- `selects` says how many rows have this word or a rarer one of the question. Joined by OR, common words rank every row, so
-- the search takes words from the rarest on; the rarest itself counts as selecting none, so that one is always taken.
DROP FUNCTION IF EXISTS memory_search_query(text), memory_question(text);

CREATE FUNCTION memory_question(question text)
RETURNS TABLE (word tsquery, tells double precision, pair boolean, selects double precision)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    memories double precision;
    known text[];
    frequencies real[];
    rarest real;
BEGIN
    -- As the planner does: rows a page as ANALYZE found them, times the pages that there are now.
    SELECT
        greatest(c.reltuples, 1) / nullif(c.relpages, 0) * pg_relation_size(c.oid) / current_setting('block_size')::integer,
        s.most_common_elems::text::text[], s.most_common_elem_freqs
    INTO memories, known, frequencies
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'search'
    WHERE c.oid = 'memories'::regclass;
    IF known IS NULL OR memories IS NULL THEN
        known := NULL;
        SELECT count(*) INTO memories FROM (SELECT FROM memories m WHERE m.is_active LIMIT 10000) AS some_of_them;
    END IF;
    -- Behind the frequencies of the listed words stand the lowest and the highest of them.
    rarest := coalesce(frequencies[cardinality(known) + 1] / 2, 0);
    RETURN QUERY
    WITH asked AS (
        SELECT lexeme, positions, ('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''')::tsquery AS word
        FROM unnest(memory_search_vector(left(question, 20000)))
        ORDER BY length(lexeme) DESC, lexeme
        LIMIT CASE WHEN known IS NULL THEN 64 ELSE 256 END
    ),
    counted AS (
        SELECT
            a.*,
            CASE
                WHEN known IS NOT NULL
                    THEN coalesce(frequencies[array_position(known, a.lexeme)], rarest) * memories
                ELSE (SELECT count(*) FROM (SELECT FROM memories m WHERE m.is_active AND m.search @@ a.word LIMIT 1000) AS few)
            END AS matching
        FROM asked a
    ),
    ranked AS (
        SELECT
            c.*,
            ln(1 + (greatest(memories - c.matching, 0) + 0.5) / (c.matching + 0.5)) AS idf,
            row_number() OVER rarest_first AS place,
            sum(c.matching) OVER rarest_first AS selected
        FROM counted c
        WINDOW rarest_first AS (ORDER BY c.matching, c.lexeme)
    ),
    placed AS (
        SELECT
            r.word, r.idf, position,
            lead(r.word) OVER in_order AS next_word, lead(r.idf) OVER in_order AS next_idf, lead(position) OVER in_order AS next_position
        FROM ranked r, unnest(r.positions) AS position
        WHERE r.place <= 64
        WINDOW in_order AS (ORDER BY position)
    )
    SELECT r.word, r.idf, false, CASE WHEN r.place > 1 THEN r.selected ELSE 0 END
    FROM ranked r
    WHERE r.place <= 64
    UNION ALL
    (SELECT DISTINCT tsquery_phrase(p.word, p.next_word, p.next_position - p.position), (p.idf + p.next_idf) / 4, true, NULL::double precision
     FROM placed p
     WHERE p.next_position - p.position BETWEEN 1 AND 2 AND p.word <> p.next_word
     ORDER BY 2 DESC, 1
     LIMIT 16);
END
$$;
