"""Pages of the web into memories, from a server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from afterrun.chunking import Chunker
from afterrun.db import Database
from afterrun.errors import InputError
from afterrun.gather import gather_pages
from afterrun.mirror import Counts, Mirrored
from afterrun.sources import web
from afterrun.sources.web import Fetcher, FetchError, address
from afterrun.testing import HashEmbedder

PAGE = b"<title>Shop</title><h1>Guide</h1><p>How it works.</p><h2>Install</h2><p>Run make.</p>"


@dataclass
class Site:
    """What a server answers, path by path, and what it was asked."""

    url: str = ""
    pages: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def put(self, path: str, content: bytes, status: int = 200, **headers: str) -> str:
        return self.put_with(path, content, {name.replace("_", "-"): value for name, value in headers.items()}, status)

    def put_with(self, path: str, content: bytes, headers: dict[str, str], status: int = 200) -> str:
        self.pages[path] = (status, {"Content-Type": "text/html; charset=utf-8", **headers}, content)
        return self.url + path


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, dict(self.headers)))
            status, headers, content = site.pages.get(self.path, (404, {}, b""))
            if headers.get("ETag") and self.headers.get("If-None-Match") == headers["ETag"]:
                status, content = 304, b""
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            while self.path == "/drip":
                self.wfile.write(b"x")
                time.sleep(0.05)
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site
        server.shutdown()


@pytest.fixture
def index(database: Database, embedder: HashEmbedder) -> Callable[..., Mirrored]:
    chunker = Chunker(embedder.spec)

    def run(*urls: str, full: bool = False, clean: bool = False) -> Mirrored:
        return gather_pages(database, chunker, urls, project="shop", full=full, clean=clean, fetcher=Fetcher(seconds=5))

    return run


def contents(database: Database) -> list[str]:
    with database.transaction() as connection:
        rows = connection.execute("SELECT content FROM memories WHERE is_active ORDER BY session_ordinal").fetchall()
    return [row[0] for row in rows]


def test_a_page_is_indexed_by_its_headings(site: Site, index: Callable[..., Mirrored], database: Database) -> None:
    url = site.put("/guide", PAGE)
    assert index(url).memories == Counts(added=2)
    assert contents(database) == [f"{url}: Guide\nHow it works.", f"{url}: Guide > Install\nRun make."]


def test_a_second_pass_asks_whether_it_changed_and_reads_nothing(
    site: Site, index: Callable[..., Mirrored], database: Database
) -> None:
    url = site.put("/guide", PAGE, ETag='"1"', Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT")
    index(url)
    done = index()
    assert (done.unchanged, done.memories) == (1, Counts())
    assert site.asked[1][1]["If-None-Match"] == '"1"'
    assert site.asked[1][1]["If-Modified-Since"] == "Mon, 01 Jan 2024 00:00:00 GMT"
    site.put("/guide", PAGE.replace(b"Run make.", b"Run just."), ETag='"2"')
    assert index().memories == Counts(changed=1, unchanged=1)


def test_a_page_that_is_gone_loses_its_memories_and_one_that_fails_keeps_them(
    site: Site, index: Callable[..., Mirrored], database: Database
) -> None:
    one, other = site.put("/one", PAGE), site.put("/other", PAGE)
    index(one, other)
    site.put("/one", b"", 503)
    del site.pages["/other"]
    done = index()
    assert (done.removed, dict(done.skipped), dict(done.failed)) == (1, {"gone": 1}, {one: "the server answers 503"})
    assert {text.partition(": ")[0] for text in contents(database)} == {one}


def test_redirects_are_followed_within_bounds(site: Site, index: Callable[..., Mirrored], database: Database) -> None:
    site.put("/here", PAGE)
    url = site.put("/there", b"", 301, Location="/here")
    loop = site.put("/loop", b"", 302, Location="/loop")
    away = site.put("/away", b"", 302, Location="file:///etc/passwd")
    done = index(url, loop, away)
    assert done.added == 1
    assert dict(done.failed) == {
        loop: "it redirects more than 5 times",
        away: "it redirects to what is no address of the web",
    }
    assert contents(database)[0].startswith(f"{url}: Guide")


def test_a_server_outside_does_not_redirect_inside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.put("/inside", PAGE)
    url = site.put("/outside", b"", 302, Location="/inside")
    monkeypatch.setattr(web, "_is_inside", lambda url: not url.endswith("/outside"))
    with pytest.raises(FetchError, match="from outside into this network"):
        Fetcher(seconds=5).fetch(url)


@pytest.mark.parametrize(
    ("headers", "content", "reason"),
    [
        ({"Content-Type": "image/png"}, b"x", "it is image/png, which is not read"),
        ({}, b"x" * 2_000, "it has more than 1,000 bytes"),
        ({"Content-Length": "2000"}, b"x", "it breaks off"),
    ],
)
def test_what_is_no_page_to_read_is_told(site: Site, headers: dict[str, str], content: bytes, reason: str) -> None:
    url = site.put_with("/page", content, headers)
    with pytest.raises(FetchError, match=reason):
        Fetcher(seconds=1, largest=1_000).fetch(url)


def test_a_server_that_drips_is_left_in_time(site: Site) -> None:
    started = time.monotonic()
    url = site.put("/drip", b"", Content_Length="1000000")
    with pytest.raises(FetchError, match="longer than 1 s"):
        Fetcher(seconds=1).fetch(url)
    assert time.monotonic() - started < 5


def test_markdown_and_other_character_sets_are_read(
    site: Site, index: Callable[..., Mirrored], database: Database
) -> None:
    url = site.put_with(
        "/guide.md", "# Größe\n\nMaß\n".encode("latin-1"), {"Content-Type": "text/plain; charset=latin-1"}
    )
    index(url)
    assert contents(database) == [f"{url}: Größe\nMaß"]


def test_clean_leaves_the_documents_of_folders(site: Site, index: Callable[..., Mirrored], database: Database) -> None:
    url = site.put("/guide", PAGE)
    index(url)
    with database.transaction() as connection:
        connection.execute("UPDATE memories SET source_key = 'docs:' || source_key WHERE content LIKE '%Install%'")
    assert index(url, clean=True).memories.removed == 1


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file:///etc/passwd", "guide.html", "http://", "http://h/a b", "http://h:x/"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        address(url)


def test_user_password_and_fragment_are_no_part_of_an_address() -> None:
    assert address("https://me:secret@Example.org:8443/a?b=1#c") == "https://example.org:8443/a?b=1"
