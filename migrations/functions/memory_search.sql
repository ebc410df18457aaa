-- The words of a memory. A tsvector holds at most 1 MB of distinct words; of a text beyond that the beginning counts.
CREATE OR REPLACE FUNCTION memory_search_vector(content text) RETURNS tsvector
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN to_tsvector('afterrun', content);
EXCEPTION WHEN program_limit_exceeded THEN
    RETURN to_tsvector('afterrun', left(content, 200000));
END
$$;

-- A question as an OR of its rarest words. Joined by AND, the words of a question match almost nothing; joined by OR, common
-- words rank every row. So words are taken from the rarest on while the rows that they select stay few: 2 % of the table, or
-- 2,000 rows where that is more. Frequencies are those of the last ANALYZE; a word not among them is rare.
CREATE OR REPLACE FUNCTION memory_search_query(question text) RETURNS tsquery
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    WITH asked AS (
        SELECT DISTINCT lexeme
        FROM unnest(tsvector_to_array(to_tsvector('afterrun', left(question, 20000)))) AS lexeme
    ),
    known AS (
        SELECT unnest(most_common_elems::text::text[]) AS lexeme, unnest(most_common_elem_freqs) AS frequency
        FROM pg_stats
        WHERE schemaname = current_schema() AND tablename = 'memories' AND attname = 'search'
    ),
    ranked AS (
        SELECT
            lexeme,
            row_number() OVER rarest_first AS place,
            sum(coalesce(frequency, 0)) OVER rarest_first AS share
        FROM asked
        LEFT JOIN known USING (lexeme)
        WINDOW rarest_first AS (ORDER BY coalesce(frequency, 0), lexeme)
    )
    SELECT string_agg('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''', ' | ')::tsquery
    FROM ranked
    WHERE place <= 64 AND (
        place = 1
        OR share <= greatest(0.02, (SELECT 2000 / greatest(reltuples, 1) FROM pg_class WHERE oid = 'memories'::regclass))
    )
$$;
