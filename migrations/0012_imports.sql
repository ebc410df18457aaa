-- Which exports were imported here, so that an import that was stopped goes on as it began. What an export says of the
-- whole database (how source types fade, what was compared with what) is taken over only into one that was empty.
CREATE TABLE imports (
    export uuid PRIMARY KEY,
    into_empty boolean NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
