-- What judging clusters in whole needs, what calls of the language model cost, and which parts of sessions were read.

-- How alike the two least similar members are, by the model's cosine; null where nobody measured it.
ALTER TABLE consolidations ADD COLUMN similarity real;

-- One row a piece of work that calls the language model. It is written before the call with what that may take at most, so
-- that workers at the same time cannot pass a cap together, and gets the real numbers afterwards. Of a worker that died
-- in between, the row counts until `reserved_until`. `run` is the chain of work whose cap it counts for, `subject` what
-- was worked on, such as a consolidation's id.
CREATE TABLE spend (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    purpose text NOT NULL CHECK (purpose IN ('judge', 'roll_up', 'summarize')),
    project text NOT NULL CHECK (project <> ''),
    run text NOT NULL CHECK (run <> ''),
    subject text NOT NULL CHECK (subject <> ''),
    model text NOT NULL,
    calls integer NOT NULL CHECK (calls >= 0),
    input_tokens bigint NOT NULL CHECK (input_tokens >= 0),
    output_tokens bigint NOT NULL CHECK (output_tokens >= 0),
    reserved_until timestamptz
);
CREATE INDEX spend_day ON spend (at);
CREATE INDEX spend_project ON spend (project, at);

-- Until now `not_before` stood both for the lease of a worker that judges and for the pause after a failure; a person
-- who decides need not wait for the second. `waits_for` says what a cluster waits for, where it is not simply due.
ALTER TABLE consolidations
    ADD COLUMN leased_until timestamptz,
    ADD COLUMN waits_for text CHECK (waits_for IN ('spend', 'service', 'key', 'answer'));

-- Which parts of sessions were read for facts, so that a summary that was stopped goes on where it was, and the same text
-- costs nothing twice. `digest` is of the project, the session, the extractor and the part's text.
CREATE TABLE session_windows (
    digest bytea PRIMARY KEY,
    project text NOT NULL,
    session text,
    extractor text NOT NULL,
    memories uuid[] NOT NULL,
    read_at timestamptz NOT NULL DEFAULT now()
);
