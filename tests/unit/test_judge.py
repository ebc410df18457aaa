"""The deterministic judge: what it merges, what it refuses, and the guard that it names."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterrun.judge.deterministic import MOST_MEMBERS, DeterministicJudge
from afterrun.judge.guards import GUARDS, first_refusal
from afterrun.models import Member
from afterrun.reading import read

START = datetime(2026, 1, 1, tzinfo=UTC)

OTHER_TRUTHS = """
The order service calls the inventory service. || The inventory service calls the order service.
On checkout the order service calls the inventory service. || The inventory service calls the order service on checkout.
Alice reviews the code of Bob. || Bob reviews the code of Alice.
The billing worker calls the mail gateway. || The mail gateway is called by nobody but the billing worker's tests.
We migrated from MySQL to Postgres. || We migrated from Postgres to MySQL.
Data flows from Kafka into Snowflake. || Data flows from Snowflake into Kafka.
Traffic from Berlin is blocked. || Traffic to Berlin is blocked.
Migrations run before the deploy. || The deploy runs before the migrations.
Run lint, then tests. || Run tests, then lint.
Lint runs first and tests run last. || Tests run first and lint runs last.
The cache is enabled in production. || The cache is enabled in staging.
The cache is enabled. || The cache is enabled, but not in production.
The job uploads the file. || The job fails to upload the file.
The service uses Redis. || The service no longer uses Redis.
The service uses Redis. || The service used Redis until May.
The service uses Redis. || The service might use Redis.
The cache holds sessions. || The cache holds no sessions.
Every replica accepts writes. || No replica accepts writes.
The build is green on main. || The build is green on develop.
The user likes short commits. || The user dislikes short commits.
Alerts go to Slack and not to email. || Alerts go to email and not to Slack.
Alerts go to Slack rather than email. || Alerts go to email rather than Slack.
The old endpoint was removed in v3. || The old endpoint was removed in v4.
The proxy terminates TLS for the app. || The app terminates TLS for the proxy.
Eve was promoted by Dan. || Dan was promoted by Eve.
The parent waits for the child. || The child waits for the parent.
Module alpha imports module beta. || Module beta imports module alpha.
The script copies the dump from the primary to the bucket. || The script copies the dump from the bucket to the primary.
Convert Celsius to Fahrenheit. || Convert Fahrenheit to Celsius.
Convert the values from Celsius to Fahrenheit. || Convert the values from Fahrenheit to Celsius.
Sort the list ascending by date. || Sort the list descending by date.
The worker restarts every 100 tasks. || The worker restarts every 1000 tasks.
The worker restarts after 1,000 tasks. || The worker restarts after 10,000 tasks.
Keep at least two reviewers. || Keep exactly two reviewers.
Use up to 4 threads. || Use 4 threads or more.
The limit is inclusive. || The limit is exclusive.
Use TLS 1.2 or higher. || Use TLS 1.2 or lower.
The budget is $500. || The budget is €500.
The budget is 500k. || The budget is 500.
The discount is 5%. || The discount is 5 EUR.
The build takes 20 minutes. || The build took 20 minutes before the cache.
The index is rebuilt twice a day. || The index is rebuilt once a day.
The parser accepts JSON and YAML. || The parser accepts JSON or YAML.
The feature is on by default. || The feature is off by default.
The database has 12 tables. || The database has 12 dozen tables.
We have 2.5 million users. || We have 2.5 users.
The job is disabled in staging and enabled in production. || The job is enabled in staging and disabled in production.
GET is cached; POST isn't. || POST is cached; GET isn't.
The cache is enabled, the queue isn't || The queue is enabled, the cache isn't
Rotate keys every 90 days. || Rotate keys every other 90 days.
The page is cached for 5 minutes. || The page is cached in 5 minutes.
The page is cached for 5 minutes. || The page is cached every 5 minutes.
We moved off Heroku. || We moved to Heroku.
Scale out when the CPU is busy. || Scale in when the CPU is busy.
The fix landed in v2.3. || The fix landed before v2.3.
The team meets under the bridge. || The team meets over the bridge.
Logs are kept during the trial. || Logs are kept after the trial.
Use the cache because tests are slow. || Use the cache when tests are slow.
We decided against Bazel. || We decided for Bazel.
Metrics are sent by Prometheus. || Metrics are sent to Prometheus.
Send invoices to her. || Send invoices to him.
My editor is vim. || Your editor is vim.
Our API uses keys. || Their API uses keys.
A third of the pods restart. || Two thirds of the pods restart.
The mode is 0644. || The mode is 644.
You don't have to rotate keys. || You must not rotate keys.
You don't need to rotate keys. || You need to rotate keys.
The cache is said to be enabled. || The cache is enabled.
Little memory is used. || A little memory is used.
Empty lists are returned as null. || Empty lists are returned as [].
Set MAX_RETRIES to 3. || Set MIN_RETRIES to 3.
Set DEBUG=true. || Set DEBUG=false.
Set debug to true. || Set debug to false.
Call `open()` before `read()`. || Call `read()` before `open()`.
`a` depends on `b`. || `b` depends on `a`.
The regex is `^a+$`. || The regex is `^a*$`.
Import pandas as pd. || Import polars as pd.
The host is db-1.internal. || The host is db-2.internal.
Branch release/1.2 is frozen. || Branch release/1.3 is frozen.
The user speaks German and English. || The user speaks German but not English.
The user speaks German. || The user does not speak German.
The incident lasted from 10:00 to 11:00. || The incident lasted from 10:00 to 12:00.
The incident began at 10:00 and ended at 11:00. || The incident began at 11:00 and ended at 10:00.
The release is on Monday. || The release is on Tuesday.
We might switch to Bun. || We will switch to Bun.
The CI cache is warm only on weekdays. || The CI cache is warm on weekdays.
Only the first request is logged. || The first request is logged only once.
Use the staging key in tests. || Use the production key in tests.
Charges are refunded within 3 days. || Charges are refunded after 3 days.
The linter ignores generated files. || The linter checks generated files.
The app crashes without the flag. || The app crashes with the flag.
Compile with optimisation. || Compile without optimisation.
Run as root. || Do not run as root.
Please do not retry the payment. || Please retry the payment.
Retry the payment unless it was declined. || Retry the payment if it was declined.
Server A replicates to server B. || Server B replicates to server A.
Messages are acknowledged before processing. || Messages are acknowledged after processing.
It locks before the read and unlocks after the write. || It locks before the write and unlocks after the read.
The red team attacks and the blue team defends. || The blue team attacks and the red team defends.
Red marks failed builds, yellow marks skipped ones. || Yellow marks failed builds, red marks skipped ones.
The EU shop uses Adyen, the US shop Stripe. || The US shop uses Adyen, the EU shop Stripe.
Customers pay the courier. || The courier pays customers.
The config overrides the environment. || The environment overrides the config.
Local settings win over global settings. || Global settings win over local settings.
The API gateway is in front of the auth service. || The auth service is in front of the API gateway.
The team owns the service. || The service owns the team.
The index contains the table name. || The table name contains the index.
Metrics are pushed to Prometheus. || Metrics are pulled by Prometheus.
The migration succeeded. || The migration did not succeed.
The migration succeeded on the second try. || The migration succeeded on the third try.
Half of the traffic goes to the canary. || All of the traffic goes to the canary.
The beta is open to everyone. || The beta is open to everyone except minors.
We use Redis for sessions. || Should we use Redis for sessions?
We use Redis for sessions. || We do not use Redis for sessions.
We use Redis for sessions. || We will use Redis for sessions.
Admins can export only invoices. || Only admins can export invoices.
All tests are stable. || Most tests are stable.
Tests are stable. || Some tests are stable.
Uploads are limited to 10 MB. || Uploads are limited to 10 MiB.
The retry limit is 3. || The retry limit is at least 3.
At least 3 replicas run. || At most 3 replicas run.
More than 3 replicas run. || At least 3 replicas run.
The timeout is 30 s. || The timeout is 30 min.
The timeout is 30 s. || The timeout is 30 s for reads and 60 s for writes.
Python 3.1 is required. || Python 3.10 is required.
Use version 2.0.1 of the client. || Use version 2.0.10 of the client.
Bucket orders-backup-eu holds the backups. || Bucket orders-backup-us holds the backups.
Run it with -v. || Run it with -V.
Run it with --force. || Run it with -force.
Exit if a != b. || Exit if a == b.
Set `x = 1` in the config. || Set `x = 2` in the config.
The meeting is on 3 April. || The meeting is on 4 March.
The meeting is on 2026-03-04. || The meeting is on 2026-04-03.
The API is public. || The API is not public.
The endpoint is authenticated. || The endpoint is unauthenticated.
The class is thread-safe. || The class is not thread-safe.
Never deploy on Fridays. || Always deploy on Fridays.
Deploy on Fridays. || Never deploy on Fridays.
Tokens are stored encrypted. || Tokens are stored without encryption.
The user prefers vim over emacs. || The user prefers emacs over vim.
The user prefers vim to emacs. || The user prefers emacs to vim.
Primary is db1, replica is db2. || Primary is db2, replica is db1.
Staging uses 2 nodes and production uses 5. || Staging uses 5 nodes and production uses 2.
The pool was raised from 20 to 60. || The pool was lowered from 60 to 20.
The pool went from 20 to 60. || The pool went from 60 to 20.
The test passes. || The test passes only locally.
Builds are reproducible. || Builds are almost reproducible.
The queue is drained when the worker stops. || The worker stops when the queue is drained.
If the build fails, the deploy stops. || If the deploy stops, the build fails.
The frontend depends on the API. || The API depends on the frontend.
Alice manages Bob. || Alice is managed by Bob.
The gateway trusts the mesh. || The gateway is trusted by the mesh.
Logs are kept for 7 days. || Logs are kept for 7 weeks.
Logs are kept for a month. || Logs are kept for a year.
The job runs every day. || The job runs every hour.
The job runs daily at 4 am. || The job runs daily at 4 pm.
The job runs at 04:00 UTC. || The job runs at 04:00 PST.
Orders above 100 EUR ship free. || Orders below 100 EUR ship free.
Orders of 100 EUR ship free. || Orders of 100 USD ship free.
The first replica is the leader. || The second replica is the leader.
The job locks the table. || The job unlocks the table.
El servidor no guarda los datos. || El servidor guarda los datos.
Palvelin ei käynnisty. || Palvelin käynnisty.
Der Dienst startet nicht automatisch. || Der Dienst startet automatisch.
服务器不保存数据。 || 服务器保存数据。
Backups are ✅ || Backups are ❌
The feature is on. || The feature is off.
The service listens on port 80. || The service listens on port 80 or 443.
The admin must approve releases. || The admin may approve releases.
You must not restart the node. || You must restart the node.
You need not restart the node. || You must restart the node.
You need to restart the node. || You need not restart the node.
The server accepts TLS 1.2. || The server accepts TLS 1.3.
The server rejects TLS 1.2. || The server accepts TLS 1.2.
Alice owns billing, Bob owns search. || Alice owns search, Bob owns billing.
Alice owns billing and Bob owns search. || Bob owns billing and Alice owns search.
Use tabs in Go code and spaces in Python code. || Use spaces in Go code and tabs in Python code.
The parser is faster than the lexer. || The lexer is faster than the parser.
Redis is preferred to Memcached. || Memcached is preferred to Redis.
The bug is in the parser, not in the lexer. || The bug is in the lexer, not in the parser.
Reads go to the replica and writes go to the primary. || Writes go to the replica and reads go to the primary.
The token expires after login. || The token expires before login.
Keys rotate every 90 days. || Keys rotate every 30 days.
Plan A was chosen. || Plan B was chosen.
Deploys go to the US region. || Deploys go to the EU region.
10² items are cached. || 102 items are cached.
The temperature limit is -5. || The temperature limit is 5.
The rate is 1,5 percent. || The rate is 15 percent.
We chose Redis instead of Memcached. || We chose Memcached instead of Redis.
Bug 12 is caused by bug 14. || Bug 14 is caused by bug 12.
The mobile team approves changes by the web team. || The web team approves changes by the mobile team.
The cron job on host a1 triggers the sync on host b2. || The cron job on host b2 triggers the sync on host a1.
The service reads from the queue and writes to the table. || The service writes to the queue and reads from the table.
CI runs unit tests in parallel, UI tests one by one. || CI runs UI tests in parallel, unit tests one by one.
The web app talks over gRPC, the mobile app over REST. || The web app talks over REST, the mobile app over gRPC.
No dark mode in the editor but in the terminal. || No dark mode in the terminal but in the editor.
Emails are sent with SES, SMS with Twilio. || SMS are sent with SES, emails with Twilio.
All replicas accept writes. || Two replicas accept writes.
""".strip().splitlines()

SAME = """
The job runs every night. || The job runs nightly.
The timeout is 30 s. || The timeout is set to 30 seconds.
The cache lives in Redis. || The cache is stored in Redis.
CI builds the image. || The image is built by CI.
The config files are in /etc/app. || Configuration files live in /etc/app.
The API doesn't support XML. || The API does not support XML.
Logs are kept for two weeks. || We keep the logs for 14 days.
The user prefers tabs over spaces. || The user prefers tabs to spaces.
The frontend uses React. || The front end uses React.
Uploads are limited to 10 MB. || The upload limit is 10 MB.
Retries are disabled. || Retries are turned off.
The service listens on port 80. || The service listens on port 80 and is written in Go.
Pull requests need two approvals. || PRs need 2 approvals.
The CFO wants a weekly report. || As was already mentioned, the CFO wants a weekly report!
Releases are cut on Mondays. || Every Monday a release is cut.
""".strip().splitlines()


def members(*texts: str) -> list[Member]:
    """Members of these texts, each a day newer than the one before."""
    return [
        Member(id=UUID(int=at), content=text, source_type="fact", created_at=START + timedelta(days=at))
        for at, text in enumerate(texts, 1)
    ]


def guard(a: str, b: str) -> str | None:
    refusal = first_refusal(read(a), read(b))
    return refusal.guard if refusal else None


@pytest.mark.parametrize("pair", OTHER_TRUTHS)
def test_two_truths_in_nearly_the_same_words_are_never_the_same(pair: str) -> None:
    a, b = pair.split(" || ")
    assert guard(a, b) in GUARDS
    assert guard(b, a) in GUARDS


@pytest.mark.parametrize("pair", SAME)
def test_other_words_for_one_fact_are_the_same(pair: str) -> None:
    a, b = pair.split(" || ")
    assert guard(a, b) is None
    assert guard(b, a) is None


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        ("The proxy listens on port 80.", "The proxy listens on port 81.", "numbers"),
        ("Logs are kept for 7 days.", "Logs are kept for 7 weeks.", "numbers"),
        ("The client is pinned to v2.0.1.", "The client is pinned to v2.0.2.", "identifiers"),
        ("The log is in /var/log/app.", "The log is in /srv/log/app.", "identifiers"),
        ("The job runs at 04:00 UTC.", "The job runs at 04:00 PST.", "time zones"),
        ("The job runs once per hour.", "The job runs once per minute.", "units"),
        ("At least 3 replicas run.", "At most 3 replicas run.", "comparison"),
        ("The API is public.", "The API is not public.", "negation"),
        ("All tests are stable.", "Some tests are stable.", "quantifiers"),
        ("You may restart the node.", "You must restart the node.", "modality"),
        ("We use Redis for sessions.", "Should we use Redis for sessions?", "modality"),
        ("Uploads to the disk are synchronous.", "Uploads to the disk are asynchronous.", "opposites"),
        ("The cache runs in staging.", "The cache runs in production.", "environment"),
        ("The report is for Berlin.", "The report is for Paris.", "entities"),
        ("The export is slow today.", "The export was slow today.", "tense"),
        ("Data flows from Kafka to Spark.", "Data flows from Spark to Kafka.", "direction"),
        ("The job reads the table.", "The job sorts the table.", "content"),
        ("The app cache is shared.", "The app cache is shared, but slowly.", "revision"),
        ("The API calls the worker.", "The worker calls the API.", "order"),
        ("Run it with --force now.", "Run it with -force now.", "symbols"),
        ("Le service est lent.", "Le service est tres lent.", "language"),
        ("It is slow.", "It is slow, says the report about the export of the orders.", "length"),
    ],
)
def test_the_result_names_the_guard_that_fired(a: str, b: str, name: str) -> None:
    verdict = DeterministicJudge().judge(members(a, b))
    assert verdict.same == ()
    assert verdict.guard == name
    assert verdict.reason.startswith(f"{name}: ")


def test_case_space_and_punctuation_make_no_difference() -> None:
    assert guard("Use  Redis -- for sessions!", "use redis for sessions") is None
    assert guard("Run it with !x.", "Run it with x.") is not None
    assert guard("Use  Redis for sessions!", "use redis\nfor sessions") is None
    assert guard("\uff35\uff53\uff45 Redis.", "Use Redis.") is None


def test_texts_of_other_languages_are_the_same_only_when_equal() -> None:
    assert guard("Der Dienst l\u00e4uft nachts.", "Der Dienst l\u00e4uft nachts") is None
    assert guard("Der Dienst l\u00e4uft nachts.", "Der Dienst l\u00e4uft immer nachts.") == "language"
    assert guard("The server is slow.", "Der Server ist langsam.") == "language"


def test_the_largest_agreeing_set_around_the_newest_is_merged_whatever_the_order() -> None:
    cluster = members("Cart data lives in Redis.", "Cart data lives in Memcached.", "Redis holds the cart data.")
    for given_order in (cluster, cluster[::-1]):
        verdict = DeterministicJudge().judge(given_order)
        assert verdict.same == (UUID(int=3), UUID(int=1))
        assert verdict.superseded == {}
        assert "2 of 3" in verdict.reason


def test_what_is_the_same_pairwise_only_with_the_middle_is_not_chained() -> None:
    texts = (
        "The cache is shared and slow.",
        "The cache is shared and slow and large.",
        "The cache is shared and large.",
    )
    assert len(DeterministicJudge().judge(members(*texts)).same) == 2


def test_nothing_is_merged_when_only_older_members_agree() -> None:
    verdict = DeterministicJudge().judge(members("The port is 80.", "The port is 80!", "The port is 81."))
    assert verdict.same == ()
    assert verdict.guard == "numbers"


def test_a_low_cosine_forbids_a_word_wise_match_but_not_an_equal_text() -> None:
    words = members("The cache lives in Redis.", "The cache is stored in Redis.")
    assert DeterministicJudge().judge(words, lambda a, b: 0.2).guard == "similarity"
    assert DeterministicJudge().judge(words, lambda a, b: 0.8).same
    assert DeterministicJudge().judge(members("The cache lives.", "the cache lives"), lambda a, b: 0.2).same


def test_a_cluster_of_one_or_none_says_so() -> None:
    assert DeterministicJudge().judge([]).same == ()
    assert DeterministicJudge().judge(members("alone")).reason == "nothing to compare"


def test_a_large_cluster_of_equal_texts_is_cut_to_the_newest() -> None:
    verdict = DeterministicJudge().judge(members(*["The port is 80."] * 40))
    assert len(verdict.same) == MOST_MEMBERS
    assert verdict.same[0] == UUID(int=40)


def test_run_summaries_of_thousands_of_characters_are_compared_by_whole_sentences() -> None:
    lines = [f"The worker number {n} moved the file part-{n}.csv and wrote {n} rows." for n in range(90)]
    text = " ".join(lines)
    assert guard(text, text + " ") is None
    assert guard(text, text.replace("part-7.csv and", "part-8.csv and")) is not None
    assert guard(text, " ".join(lines[1:] + lines[:1])) is not None


@pytest.mark.parametrize(
    "unit", ["a", "a.", "`", " ", "\n- ", "not ", "1 ", "The worker wrote 3 rows to disk. ", "a_b/c "]
)
def test_two_texts_of_100_kb_are_judged_in_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    began = time.process_time()
    guard(text, text[:-1] + "x")
    assert time.process_time() - began < 3, "one second on an idle machine, with room for a busy one"


@given(st.text(max_size=200), st.text(max_size=200))
def test_every_text_can_be_judged_and_the_judge_is_symmetric(a: str, b: str) -> None:
    assert guard(a, a) is None
    assert (guard(a, b) is None) == (guard(b, a) is None)


_PIECES = st.sampled_from(
    [
        "the",
        "a",
        "cache",
        "Redis",
        "not",
        "only",
        "port",
        "80",
        "81",
        "from",
        "to",
        "lives",
        "in",
        "before",
        ",",
        ".",
        "never",
        "all",
        "holds",
        "`x`",
        "!=",
        "staging",
    ]
)


@given(st.lists(_PIECES, max_size=12), st.lists(_PIECES, max_size=12))
def test_the_judge_is_symmetric_on_sentences_of_its_own_vocabulary(a: list[str], b: list[str]) -> None:
    one, two = " ".join(a), " ".join(b)
    assert (guard(one, two) is None) == (guard(two, one) is None)
