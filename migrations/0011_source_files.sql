-- What files and pages were when they were last indexed, so that a pass over unchanged ones opens none of them.

-- One row a file of a source. `path` is relative to the root, so that another checkout is the same source; of a page it is
-- the address. `modified_ns` is 0 where the time cannot be trusted, `reader` the version of the code that read it,
-- `skipped` why it was left out. `pieces` are the source keys of its memories, and `etag` and `last_modified` what a web
-- server wants to hear to answer "not modified".
CREATE TABLE source_files (
    project text NOT NULL CHECK (project <> ''),
    source text NOT NULL CHECK (source IN ('codebase', 'docs', 'standards', 'url')),
    path text NOT NULL CHECK (path <> ''),
    size bigint NOT NULL,
    modified_ns bigint NOT NULL,
    digest bytea NOT NULL,
    reader integer NOT NULL,
    skipped text,
    pieces text[] NOT NULL DEFAULT '{}',
    etag text,
    last_modified text,
    indexed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project, source, path)
);
