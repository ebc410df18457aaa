"""What scrubbing removes, what it leaves alone, and that it is idempotent and linear."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterrun.redact import MAX_DEPTH, PATTERNS, TOO_DEEP, scrub, scrub_value

ALNUM = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
PEM_BODY = "MIIEowIBAAKCAQEA7bq5Zx1v0cQ2k9dJm4tL\nq8sN3wPz5yRf6uHg7jKl"
SECRETS = {
    "anthropic-key": f"sk-ant-api03-{ALNUM}_-{ALNUM}AA",
    "openai-key": f"sk-proj-{ALNUM}-{ALNUM}",
    "github-token": f"ghp_{ALNUM}0123",
    "gitlab-token": "glpat-Ab3dEf6hIj9kLm2nOp5q",
    "slack-token": "xoxb-123456789012-abcdefABCDEF",
    "slack-webhook": "services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "aws-key-id": "AKIAIOSFODNN7EXAMPLE",
    "google-key": "AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "stripe-key": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "afterrun-key": "ark_" + "0a1b" * 3 + "_" + "9f" * 32,
    "npm-token": f"npm_{ALNUM}abcd",
    "pypi-token": f"pypi-AgEIcHlwaS5vcmc{ALNUM}{ALNUM}",
    "huggingface-token": f"hf_{ALNUM}ab",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
    "private-key": f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----",
    "url-password": "s3cr3t@pw",
    "authorization": "dXNlcjpwYXNzd29yZA==",
    "secret": "hunter2!x",
}
AROUND = {
    "slack-webhook": ("https://hooks.slack.com/", ""),
    "url-password": ("postgres://app:", "@db.example/prod"),
    "authorization": ("Authorization: Basic ", ""),
    "secret": ("DB_PASSWORD=", ""),
}
MORE = [
    f"sk-{ALNUM}",
    f"github_pat_{ALNUM}_{ALNUM}",
    f"ghs_{ALNUM}0123",
    "xapp-1-A0123456789-abcdef",
    "ASIAIOSFODNN7EXAMPLE",
    f"ya29.{ALNUM}",
    f"GOCSPX-{ALNUM}",
    "rk_test_" + "4eC39HqLyjWDarjtT1zdp7dc",
    f"whsec_{ALNUM}",
]
ASSIGNMENTS = [
    "password=hunter2",
    "password=letmein",
    "PGPASSWORD=hunter2",
    "smtp_pass=hunter2",
    "password: hunter2",
    "'password' => 'hunter2'",
    'password = "hunter2"',
    'api_key: "hunter2"',
    "api-key: 'hunter2'",
    "x-api-key: hunter2",
    '{"token": "hunter2", "n": 1}',
    r"{\"token\": \"hunter2\"}",
    'config["secret"] = "hunter2"',
    'API_KEY: Final = "hunter2"',
    'token: str | None = "hunter2"',
    "?access_token=hunter2&page=1",
    "--password hunter2",
    "--api-key=hunter2",
    'aws_secret_access_key = "hunter2"',
    'password = "hunter2',
    "AccountKey=hunter2==;Endpoint",
]
INNOCENT = [
    "the password is required",
    "Fix password: the user must be asked again",
    'password=os.environ["X"]',
    "password=os.getenv('X')",
    "token: str",
    "def login(user: str, password: str, token: str | None = None) -> Token:",
    "token = self.token",
    "secret=settings.secret_key",
    "password=None, token=token",
    "if token == other_token:",
    "max_tokens=4096, token_count: 12345678, num_tokens = 200000",
    'eos_token="</s>", pad_token="[PAD]"',
    'password="${DB_PASSWORD}"',
    "password=$DB_PASSWORD",
    "postgres://app:${DB_PASSWORD}@db/prod",
    "http://localhost:8080/a@b",
    "Use --password to set it, --token TOKEN to log in",
    '"password": "***"',
    "Look for '-----BEGIN RSA PRIVATE KEY-----' in the file. Then stop.",
    "sk-fading-circle-and-chasing-dots-of-spinkit",
    "the bearer authenticates himself by name",
    "commit 496fbe8d0c1f7a3b5e9d2c4a6b8f0e1d3c5a7b9e",
    "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    str(uuid.UUID(int=2**127 + 12345)),
    "secrets: inherit",
    "Map<Privateer, int> and <privately>",
]


def test_the_table_has_an_example_of_each_kind() -> None:
    assert {pattern.kind for pattern in PATTERNS} == set(SECRETS)
    assert all(pattern.meaning for pattern in PATTERNS)


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_of_secret_is_masked_and_its_surroundings_stay(kind: str) -> None:
    before, after = AROUND.get(kind, ("", ""))
    text = f"Deployed with {before}{SECRETS[kind]}{after} on Friday."
    assert scrub(text) == f"Deployed with {before}[redacted:{kind}]{after} on Friday."


@pytest.mark.parametrize("secret", MORE)
def test_other_forms_of_tokens_are_masked(secret: str) -> None:
    assert secret not in scrub(f"({secret}), done")
    assert scrub(f"({secret}), done").endswith("]), done")


@pytest.mark.parametrize("text", ASSIGNMENTS)
def test_assigned_secrets_are_masked(text: str) -> None:
    masked = scrub(f"We set {text}\nand it works")
    assert "hunter2" not in masked
    assert "letmein" not in masked
    assert "[redacted:secret]" in masked
    assert masked.endswith("and it works")


@pytest.mark.parametrize("text", INNOCENT)
def test_prose_code_and_hashes_stay(text: str) -> None:
    assert scrub(text) == text


def test_a_base64_image_stays() -> None:
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 64).decode()
    assert scrub(f"![chart]({image})") == f"![chart]({image})"


def test_a_cut_off_private_key_is_masked_and_prose_after_it_stays() -> None:
    head = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    assert scrub(f"{head}{PEM_BODY}\nThen we left.") == "[redacted:private-key]\nThen we left."
    assert scrub(f"{head}{PEM_BODY}\nMII") == "[redacted:private-key]"
    assert scrub(f"{head}MIIEow") == "[redacted:private-key]"


def test_a_key_in_a_json_string_is_masked() -> None:
    text = json.dumps({"key": SECRETS["private-key"]})
    assert scrub(text) == '{"key": "[redacted:private-key]"}'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a <private>x</private> b", "a  b"),
        ("a <PRIVATE>x\ny</Private> b", "a  b"),
        ('a <private reason="salary" >x</private\t> b', "a  b"),
        ("a <private>x<private>y</private>z</private> b", "a  b"),
        ("a <private>x", "a "),
        ("a <private>x</private> b <private>y", "a  b "),
        ("a <private/> b", "a  b"),
        ("a </private> b", "a  b"),
        ('a <private note="x', "a "),
        ("a <pri<private>x</private>vate>secret</private> b", "a "),
        ("a <pri\0vate>x</private> b", "a  b"),
    ],
)
def test_private_blocks_are_removed_and_an_unclosed_one_hides_the_rest(text: str, kept: str) -> None:
    assert scrub(text) == kept


def test_nul_is_removed_and_lone_surrogates_are_replaced() -> None:
    assert scrub("a\0b \ud800 \udfff \ud83d\ude00 😀") == "ab � � 😀 😀"
    scrub("\udc80" * 3).encode("utf-8")


@pytest.mark.parametrize("text", ["", "日本語のまとめ", "مرحبا بالعالم", "👩‍👩‍👧 naïve Ünïcödé", "tab\tand\r\nlines"])
def test_ordinary_text_of_any_script_stays(text: str) -> None:
    assert scrub(text) == text


FRAGMENTS = [
    *SECRETS.values(),
    *chain.from_iterable(AROUND.values()),
    *ASSIGNMENTS,
    *INNOCENT,
    *(
        "<private>",
        "</private>",
        "<private ",
        "<pri",
        "vate>",
        ">",
        "<",
        "/",
        "=",
        ":",
        '"',
        "'",
        "\\",
        "&",
        "@",
        "://",
    ),
    *(
        "password",
        "token",
        "--token ",
        "Bearer ",
        "Authorization: ",
        "[redacted:",
        "]",
        " ",
        "\n",
        "\0",
        "\ud800",
        "-",
        "x1",
    ),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "A" * 20, "$", "{", "}", "(", "[", ".", ",", "🙂"),
]


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=12).map("".join))
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    once = scrub(text)
    assert scrub(once) == once
    once.encode("utf-8")


HOSTILE = [
    *(
        "<",
        "<private ",
        "<private>",
        "</private>",
        "<pri<private>x</private>vate>",
        "password=",
        'password="',
        "password =",
    ),
    *(
        "password='x ",
        "://",
        "://a:b@",
        "-----BEGIN PRIVATE KEY-----",
        "-",
        "--a",
        "eyJabcdef.",
        "sk-",
        "a",
        "A",
        " ",
        "\\",
    ),
    *(
        "token: str = ",
        "token: a[b,",
        "password=a&",
        "bearer a",
        "\ud800",
        "\ud83d\ude00",
        "AKIA",
        "[redacted:",
        "password=${",
    ),
]


def seconds_to_scrub(text: str) -> float:
    started = time.process_time()
    scrub(text)
    return time.process_time() - started


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_of_two_megabytes_takes_linear_time(unit: str) -> None:
    text = unit * (2_000_000 // len(unit))
    assert any(seconds_to_scrub(text) < 1.0 for _ in range(3)), "three tries, as other processes slow this one down"


def test_metadata_is_scrubbed_in_keys_values_and_lists() -> None:
    value = {
        "note\0": ["a <private>x</private>", ("password=hunter2", 1, None, True)],
        "api_key": "plain words",
        SECRETS["github-token"]: 2.5,
        3: "b",
    }
    assert scrub_value(value) == {
        "note": ["a ", ["password=[redacted:secret]", 1, None, True]],
        "api_key": "[redacted:secret]",
        "[redacted:github-token]": 2.5,
        "3": "b",
    }


@pytest.mark.parametrize(
    "metadata",
    [
        {"api_key": ["hunter2", {"v": "hunter2"}]},
        {"db": {"Secret": {"v": {"w": ("hunter2", {"hunter2"})}}}},
        {"password ": "hunter2", "passwords": ["hunter2"], b"password": b"hunter2", "api_keys": {"a": "hunter2"}},
        {"credentials": {"user": "hunter2"}, "client_secrets": ["hunter2"]},
    ],
)
def test_every_string_below_a_key_that_names_a_secret_is_masked(metadata: object) -> None:
    masked = scrub_value(metadata)
    assert "hunter2" not in repr(masked)
    assert scrub_value(masked) == masked


def test_numbers_below_a_key_that_names_a_secret_are_masked_and_switches_stay() -> None:
    value = {"password": 123456789012, "secret": {"pin": [1234, 0.5], "on": True, "off": None, "empty": ""}}
    hidden = "[redacted:secret]"
    kept = {"pin": [hidden, hidden], "on": True, "off": None, "empty": ""}
    assert scrub_value(value) == {"password": hidden, "secret": kept}


@pytest.mark.parametrize(
    "key", ["token_count", "tokens", "max_tokens", "password_required", "secretary", "keys", "passes", "author"]
)
def test_values_below_a_key_that_only_resembles_a_secrets_name_stay(key: str) -> None:
    value = {key: [4096, "a word", {"n": 1.5}]}
    assert scrub_value(value) == value


def test_metadata_becomes_what_json_can_hold() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    value = {
        ("a", 1): [float("nan"), float("-inf"), 1e308, Decimal("1.50"), 10**5000, 10**4000],
        None: [moment, uuid.UUID(int=7), b"\xff!", Path("a/b")],
        moment: {"only"},
        b"bytes": frozenset(),
    }
    assert scrub_value(value) == {
        "('a', 1)": ["nan", "-inf", 1e308, "1.50", "[number of 16610 bits]", 10**4000],
        "None": [str(moment), str(uuid.UUID(int=7)), "\ufffd!", "a/b"],
        str(moment): ["only"],
        "bytes": [],
    }
    json.dumps(scrub_value(value), allow_nan=False)


def test_metadata_nested_too_deep_is_cut_without_an_error() -> None:
    value: object = "bottom"
    for _ in range(100_000):
        value = [value]
    scrubbed = scrub_value(value)
    for _ in range(MAX_DEPTH):
        assert isinstance(scrubbed, list)
        scrubbed = scrubbed[0]
    assert scrubbed == TOO_DEEP
