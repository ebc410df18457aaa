"""What a question may share with a memory: words of any language, identifiers and their parts, and its neighbours."""

from __future__ import annotations

import random

import pytest

from afterrun.client import Memory
from afterrun.db import connect
from afterrun.testing import HashEmbedder
from afterrun.vectors import embed_pending

FILLERS = (
    "The nightly backup takes two hours.",
    "Der Rechner startet jede Nacht neu.",
    "Le serveur redémarre chaque nuit.",
    "El servidor se reinicia cada noche.",
    "Сервер перезапускается каждую ночь.",
    "服务器每天晚上重启。",
    "サーバーは毎晩再起動します。",
)
LANGUAGES = {
    "German": ("Die Datenbankverbindung läuft über einen Tunnel.", "Wo steht etwas zur Datenbankverbindung?"),
    "German without umlauts": ("Für die Prüfung gibt es einen Schlüssel.", "welcher SCHLUSSEL"),
    "French": ("La file d'attente est vidée à minuit.", "À quelle heure vide-t-on l'attente ?"),
    "Spanish": ("La contraseña se guarda en el almacén.", "¿Dónde está la contraseña?"),
    "Russian": ("Очередь хранится в оперативной памяти.", "Где хранится очередь?"),
    "Chinese": ("数据库使用五千号端口。", "数据库在哪里"),
    "Chinese, one character": ("猫喜欢鱼。", "猫"),
    "Japanese": ("データベースは毎週圧縮されます。", "データベースについて教えて"),
    "Korean": ("데이터베이스는 매주 압축된다.", "데이터베이스가 어디에 있나"),
    "Thai": ("ฐานข้อมูลอยู่บนเครื่องที่สอง", "ข้อมูลอยู่ไหน"),
    "decomposed accents": ("The cafe\u0301 order is confirmed.", "café"),
    "full-width letters": ("\uff30\uff4f\uff53\uff54\uff47\uff52\uff45\uff53 holds the orders.", "postgres"),
}
IDENTIFIERS = (
    ("getUserById returns a row or None.", ("getUserById", "user", "getuserbyid")),
    ("parse_config_file reads TOML.", ("parse_config_file", "config")),
    ("Call app.db.pool before the fork.", ("app.db.pool", "pool")),
    ("Start it with --dry-run first.", ("--dry-run", "dry-run", "dry")),
    ("It failed with E1234 twice.", ("E1234", "e1234")),
    ("See /etc/nginx/sites-enabled/shop.conf for it.", ("/etc/nginx/sites-enabled/shop.conf", "nginx", "shop.conf")),
    (r"Logs are in C:\Temp\worker.log there.", (r"C:\Temp\worker.log", "worker.log", "temp")),
    ("HTTPServerError is raised late.", ("HTTPServerError", "server")),
    ("Use std::unique_ptr for it.", ("std::unique_ptr", "unique_ptr", "ptr")),
    ("Released on 2026-02-11 at noon.", ("2026-02-11", "2026")),
    ("Pinned to version 3.11.4 for now.", ("3.11.4",)),
)


@pytest.mark.parametrize(("text", "question"), LANGUAGES.values(), ids=LANGUAGES)
def test_a_shared_word_finds_a_memory_in_its_language(memory: Memory, text: str, question: str) -> None:
    for filler in FILLERS:
        memory.remember(filler)
    memory.remember(text)
    best = memory.search(question, min_results=0)[0]
    assert best.content == text
    assert best.text == 1


@pytest.mark.parametrize(("text", "questions"), IDENTIFIERS, ids=[text for text, _ in IDENTIFIERS])
def test_an_identifier_is_found_whole_and_by_its_parts(memory: Memory, text: str, questions: tuple[str, ...]) -> None:
    for filler in FILLERS:
        memory.remember(filler)
    memory.remember(text)
    for question in questions:
        assert [hit.content for hit in memory.search(question, min_results=0)] == [text], question


def test_the_whole_identifier_tells_more_than_its_parts(memory: Memory) -> None:
    memory.remember("A user is found by an id; get it from the cache.")
    memory.remember("The lookup is getUserById.")
    assert memory.search("getUserById")[0].content == "The lookup is getUserById."


def test_a_rare_word_tells_more_than_common_ones(memory: Memory) -> None:
    for number in range(20):
        memory.remember(f"The deploy of the billing service was slow, run {number}.")
    memory.remember("Kombu needs a longer timeout.")
    assert "Kombu" in memory.search("was the deploy of kombu slow for the billing service")[0].content


def test_words_next_to_each_other_tell_more_than_the_same_words_apart(memory: Memory) -> None:
    memory.remember("The pool keeps a connection, and the size of the cache is fixed.")
    memory.remember("The size is fixed, and the cache keeps a connection pool.")
    assert memory.search("connection pool")[0].content.endswith("connection pool.")


def test_what_is_said_next_to_a_memory_in_its_session_helps_to_find_it_until_it_is_forgotten(memory: Memory) -> None:
    question = memory.remember("Which queue do we use for invoices?", session="monday")
    memory.remember("RabbitMQ, because they asked for it.", session="monday")
    memory.remember("Kafka, because they asked for it.", session="tuesday")

    def parts() -> tuple[float, float]:
        found = {hit.content.split(",")[0]: hit.text or 0 for hit in memory.search("Which queue for invoices?")}
        return found["RabbitMQ"], found["Kafka"]

    helped, other = parts()
    assert helped >= 0.4
    assert other == 0
    memory.forget(question.id)
    assert parts() == (0, 0)


def test_a_memory_without_a_place_goes_to_the_end_of_its_session(memory: Memory) -> None:
    first = memory.remember("one", session="monday")
    second = memory.remember("two", session="monday", session_ordinal=7)
    third = memory.remember("three", session="monday")
    other = memory.remember("four", session="monday", project="shop")
    alone = memory.remember("five")
    records = {
        record.id: record.session_ordinal
        for record in memory.get(*(m.id for m in (first, second, third, other, alone)))
    }
    assert [records[m.id] for m in (first, second, third, other, alone)] == [0, 7, 8, 0, None]


def test_the_last_possible_place_does_not_refuse_a_memory(memory: Memory) -> None:
    memory.remember("one", session="monday", session_ordinal=2**31 - 1)
    assert memory.remember("two", session="monday").created


def test_words_are_weighed_with_and_without_statistics(memory: Memory, embedder: HashEmbedder) -> None:
    for number in range(60):
        memory.remember(f"The worker restarted, run {number}.")
    memory.remember("The worker lost its lease.")
    while embed_pending(memory.database, embedder).more:
        pass
    before = memory.search("why did the worker lose a lease")[0]
    with memory.database.transaction() as connection:
        connection.execute("ANALYZE memories")
    after = memory.search("why did the worker lose a lease")[0]
    assert before.content == after.content == "The worker lost its lease."


def test_a_text_with_more_different_words_than_an_index_holds_is_remembered_by_its_beginning(memory: Memory) -> None:
    signs = [chr(0x4E00 + number) for number in range(20_000)]
    order = random.Random(5)
    text = "".join(order.choice(signs) for _ in range(200_000))
    with memory.database.transaction() as connection:
        found = connection.execute("SELECT memory_search_vector(%s) @@ %s::tsquery", [text, text[:2]]).fetchone()
    assert found == (True,)


def test_two_memories_at_the_same_place_of_a_session_are_neighbours_and_not_one(memory: Memory) -> None:
    for text in ("Which queue do we use for invoices?", "RabbitMQ, because they asked for it."):
        memory.remember(text, session="monday", session_ordinal=3)
    texts = [hit.text for hit in memory.search("Which queue for invoices?")]
    assert texts == [1, pytest.approx(0.5)]


def test_a_long_question_is_asked_by_its_longest_words(memory: Memory) -> None:
    memory.remember("The kaleidoscope_factory is closed.")
    many = " ".join(f"w{number}" for number in range(3000))
    assert memory.search(f"{many} kaleidoscope_factory")[0].text == 1
    with memory.database.transaction() as connection:
        asked = connection.execute("SELECT count(*) FROM memory_question(%s) WHERE NOT pair", [many]).fetchone()
    assert asked == (64,)


_SHARED = (
    "INSERT INTO memories (content, content_hash, search)"
    " SELECT text, text::bytea, memory_search_vector(text)"
    " FROM (SELECT 'shared common ' || n AS text FROM generate_series({}, {}) AS n) AS written"
)


def test_statistics_count_as_many_rows_as_there_are_now(memory: Memory) -> None:
    def selected() -> float:
        with memory.database.transaction() as connection:
            question = "SELECT max(selects) FROM memory_question('shared common')"
            return float((connection.execute(question).fetchone() or (0,))[0])

    with connect(memory.settings.require_database()) as connection:
        connection.execute(_SHARED.format(1, 500).encode())
        connection.execute("ANALYZE memories")
        assert selected() == pytest.approx(1000, rel=0.1)
        connection.execute(_SHARED.format(501, 5000).encode())
        assert selected() == pytest.approx(10_000, rel=0.1)
        connection.execute("TRUNCATE memories CASCADE")
        connection.execute(_SHARED.format(1, 500).encode())
        assert selected() == 1000


def test_statistics_are_found_in_whatever_schema_the_tables_stand(memory: Memory) -> None:
    with connect(memory.settings.require_database()) as connection:
        connection.execute(_SHARED.format(1, 3000).encode())
        connection.execute("ANALYZE memories")
        connection.execute("CREATE SCHEMA other")
        connection.execute("SET search_path = other, public")
        asked = connection.execute("SELECT max(selects) FROM memory_question('shared common')").fetchone()
    # Without statistics, no more than 1,000 rows of each word are counted.
    assert asked == (pytest.approx(6000, rel=0.1),)
