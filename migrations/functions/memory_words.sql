-- The words of a memory, as the index holds them: everything that a question may share with it.
--
--   words        folded (case, accents, compatibility forms) and stemmed as English; other languages pass the stemmer the
--                same way in memory and question, so a shared word still matches
--   compounds    a path, a dotted or hyphened name, an address, a date: its words, and the whole beside them
--   identifiers  getUserById: the whole, and its words
--   scripts that set no spaces (Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer): every pair of neighbouring
--                characters, and every Han character
--
-- `afterrun migrate` derives the words of all memories again when this file changes.
CREATE OR REPLACE FUNCTION memory_words(content text) RETURNS tsvector
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    unspaced CONSTANT text :=
        '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff';
    plain text := content;
    wholes text[];
    parts text;
    pairs text[] := '{}';
BEGIN
    IF octet_length(plain) > char_length(plain) THEN
        plain := normalize(plain, NFKC);
        IF plain ~ ('[' || unspaced || ']') THEN
            pairs := memory_pairs(regexp_replace(plain, '[^' || unspaced || ']+', ' ', 'g'));
            plain := regexp_replace(plain, '[' || unspaced || ']+', ' ', 'g');
        END IF;
    END IF;
    wholes := ARRAY(
        SELECT lower(match[1]) FROM regexp_matches(plain, '[[:alnum:]]+(?:[._/\\:@-]+[[:alnum:]]+)+', 'g') AS match
        WHERE length(match[1]) <= 200);
    parts := (
        SELECT string_agg(
            regexp_replace(
                regexp_replace(match[1], '([[:lower:][:digit:]])([[:upper:]])', '\1 \2', 'g'),
                '([[:upper:]])([[:upper:]][[:lower:]])', '\1 \2', 'g'),
            ' ')
        FROM regexp_matches(plain, '[[:alnum:]]+[[:upper:]][[:alnum:]]*', 'g') AS match
        WHERE match[1] ~ '[[:lower:]]');
    RETURN to_tsvector('afterrun', regexp_replace(plain, '[!-&(-/:-@\[-`{-~]+', ' ', 'g'))
        || to_tsvector('afterrun', coalesce(parts, ''))
        || array_to_tsvector(wholes || pairs);
END
$$;

-- Neighbouring characters two by two, and each Han character by itself; a space parts what does not belong together.
CREATE OR REPLACE FUNCTION memory_pairs(signs text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(DISTINCT piece), '{}')
    FROM (
        SELECT sign, lead(sign) OVER (ORDER BY place) AS following
        FROM unnest(string_to_array(left(signs, 200000), NULL)) WITH ORDINALITY AS listed (sign, place)
    ) AS neighbours,
    unnest(ARRAY[
        CASE WHEN following <> ' ' THEN sign || following END,
        CASE WHEN sign ~ '[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]' THEN sign END
    ]) AS piece
    WHERE sign <> ' ' AND piece IS NOT NULL
$$;

-- A tsvector holds at most 1 MB of distinct words; of a text beyond that the beginning counts, as much as fits.
CREATE OR REPLACE FUNCTION memory_search_vector(content text) RETURNS tsvector
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    beginning text := content;
    most integer := 200000;
BEGIN
    LOOP
        BEGIN
            RETURN memory_words(beginning);
        EXCEPTION WHEN program_limit_exceeded THEN
            beginning := left(content, most);
            most := most / 2;
        END;
    END LOOP;
END
$$;
