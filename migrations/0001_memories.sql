-- What Afterrun remembers, the pieces of it that carry vectors, and what upkeep needs to know about both.

CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS unaccent;

-- Words are folded (accents, case) and stemmed as English; words of other languages pass the stemmer the same way in
-- memory and question, so a shared word still matches.
CREATE TEXT SEARCH CONFIGURATION afterrun (COPY = english);
ALTER TEXT SEARCH CONFIGURATION afterrun
    ALTER MAPPING FOR asciiword, word, hword, hword_part, hword_asciipart, asciihword WITH unaccent, english_stem;

-- One row: which database this is. Run stores keep it, so that rows indexed into another database count as unindexed.
CREATE TABLE installation (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    only_one boolean NOT NULL DEFAULT true UNIQUE CHECK (only_one),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO installation DEFAULT VALUES;

-- Every model whose vectors lie in `chunks`; new chunks get the current one. Each has its own partial HNSW index.
CREATE TABLE embedding_models (
    id text PRIMARY KEY,
    dimension integer NOT NULL CHECK (dimension BETWEEN 1 AND 4000),
    is_current boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX embedding_models_current ON embedding_models (is_current) WHERE is_current;

-- How fast memories of a type fade and how much they count. Rows, not code, so that users can tune them.
-- '*' stands for every type that has no row of its own.
CREATE TABLE source_types (
    source_type text PRIMARY KEY,
    half_life_days double precision NOT NULL CHECK (half_life_days > 0),
    weight double precision NOT NULL CHECK (weight > 0)
);
INSERT INTO source_types (source_type, half_life_days, weight) VALUES
    ('decision', 365, 1.5),
    ('architecture', 365, 1.4),
    ('preference', 365, 1.2),
    ('fact', 90, 1.0),
    ('convention', 90, 1.0),
    ('bug_fix', 30, 1.3),
    ('debugging', 30, 1.0),
    ('session_summary', 14, 1.0),
    ('document_chunk', 14, 0.6),
    ('code_context', 14, 1.0),
    ('*', 30, 1.0);

-- A memory is active (recalled), superseded (is_active false, superseded_by set) or forgotten (is_active false,
-- archived true: a tombstone that keeps sources and late tasks from bringing it back).
CREATE TABLE memories (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    collection text NOT NULL DEFAULT 'memory' CHECK (collection IN ('memory', 'codebase', 'docs', 'standards')),
    project text NOT NULL DEFAULT 'global' CHECK (project <> ''),
    source_type text NOT NULL DEFAULT 'fact' CHECK (source_type <> ''),
    content text NOT NULL CHECK (content <> ''),
    content_hash bytea NOT NULL,
    category text,
    importance real NOT NULL DEFAULT 0.5 CHECK (importance BETWEEN 0 AND 1),
    session text,
    session_ordinal integer,
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    source_key text UNIQUE,
    is_active boolean NOT NULL DEFAULT true,
    archived boolean NOT NULL DEFAULT false,
    superseded_by uuid REFERENCES memories (id),
    seen integer NOT NULL DEFAULT 1,
    seen_at timestamptz NOT NULL DEFAULT now(),
    compared_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    search tsvector NOT NULL,
    CHECK (NOT (is_active AND (archived OR superseded_by IS NOT NULL)))
);
-- The same note remembered twice reinforces one row, also when fifty writers race. What comes from a source has its own key.
CREATE UNIQUE INDEX memories_note ON memories (project, collection, content_hash) WHERE is_active AND source_key IS NULL;
CREATE INDEX memories_search ON memories USING gin (search) WHERE is_active;
CREATE INDEX memories_newest ON memories (created_at DESC, id) WHERE is_active;
CREATE INDEX memories_scope ON memories (project, collection, created_at DESC, id) WHERE is_active;
CREATE INDEX memories_superseded_by ON memories (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX memories_uncompared ON memories (created_at, id) WHERE is_active AND compared_at IS NULL;

-- The pieces of a memory that fit into the model. `collection`, `project` and `is_active` are copies, kept in the memory's
-- own transaction, so that a filtered vector scan needs no join. `lease_until` is set while a worker holds the chunk and,
-- after a failure, until the next attempt. `failed` chunks wait in dead_letters for `afterrun retry`.
CREATE TABLE chunks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    memory_id uuid NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
    model text NOT NULL REFERENCES embedding_models (id),
    ordinal integer NOT NULL,
    content text NOT NULL,
    embedding halfvec,
    attempts integer NOT NULL DEFAULT 0,
    failed boolean NOT NULL DEFAULT false,
    lease_until timestamptz,
    last_error text,
    collection text NOT NULL,
    project text NOT NULL,
    is_active boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (memory_id, model, ordinal)
);
-- In this order they are claimed: the first piece of every memory comes before the second of any, so that a book does not
-- hold up the notes that come after it.
CREATE INDEX chunks_pending ON chunks (ordinal, id) WHERE embedding IS NULL AND is_active AND NOT failed;
CREATE INDEX chunks_scope ON chunks (model, project, collection) WHERE is_active AND embedding IS NOT NULL;

-- Candidates for merging, from the proposal on: the audit of every merge and what undo needs. `before` keeps what the
-- merge changed in each member.
CREATE TABLE consolidations (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    members_hash bytea NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'merged', 'rejected', 'related', 'undone', 'failed')),
    collection text NOT NULL,
    project text NOT NULL,
    members uuid[] NOT NULL,
    canonical uuid REFERENCES memories (id) ON DELETE SET NULL,
    superseded uuid[] NOT NULL DEFAULT '{}',
    model text,
    calls integer NOT NULL DEFAULT 0,
    input_tokens integer NOT NULL DEFAULT 0,
    output_tokens integer NOT NULL DEFAULT 0,
    guard text,
    reason text,
    attempts integer NOT NULL DEFAULT 0,
    invalid_answers integer NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX consolidations_waiting ON consolidations (not_before) WHERE state = 'waiting';
CREATE INDEX consolidations_canonical ON consolidations (canonical);

-- What could not be processed, with its error. `payload` is the run of an index task that failed.
CREATE TABLE dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task text NOT NULL,
    subject text NOT NULL,
    memory_id uuid REFERENCES memories (id) ON DELETE CASCADE,
    payload jsonb,
    error text NOT NULL,
    attempts integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (task, subject)
);

-- When each periodic task last succeeded.
CREATE TABLE heartbeats (
    task text PRIMARY KEY,
    succeeded_at timestamptz NOT NULL
);
