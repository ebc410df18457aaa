-- The place behind the last memory of a session: where a memory goes whose writer names no place.
CREATE OR REPLACE FUNCTION memory_next_ordinal(in_project text, of_session text) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN of_session IS NOT NULL THEN (
        SELECT least(coalesce(max(session_ordinal), -1), 2147483646) + 1 FROM memories
        WHERE project = in_project AND session = of_session)
    END
$$;
