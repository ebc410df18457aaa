"""Words and phrases that say the same, and numbers, units and months in words: the other half of the vocabulary.

Data only. A group says that to exchange its words never changes what a note states, so only close synonyms,
abbreviations and spellings of general English and of software work belong into it.
"""

from __future__ import annotations

from typing import Final

_PHRASES: Final = """
not: no longer | rather than | instead of | not any more
only: nobody else | no one else | nothing but
nobody: no one
none: none of
not can: cannot
not enable: disable | disables | disabled | disabling | turned off | switched off | turns off | turn off |
    deactivated
enable: turned on | switched on | turns on | turn on | activated
not obliged: not have to | not need to | need not
some: a few | a little
not allowed: forbidden | forbid | forbids | prohibited | disallowed | banned
atleast: at least | no less than | no fewer than
orhigher: or more | or higher | or above | or newer | or later | and up | or greater
atmost: at most | no more than | not more than
upto: up to
orlower: or less | or fewer | or lower
morethan: more than | greater than | larger than | bigger than | higher than | older than | longer than |
    exceeding | exceeds | exceed
lessthan: less than | fewer than | smaller than | lower than | shorter than
maximum: max | maximal
minimum: minimal
must: have to | has to | had to | need to | needs to | is to | are to
formerly: used to
prefer: would rather
will: going to | about to
before: prior to
once: as soon as
every night: nightly
every day: daily
every week: weekly
every hour: hourly
every month: monthly
every year: yearly | annually
alternate: every other
every: once a | once per | once every
half: half an | half a
simultaneously: at the same time | at once
parallel: in parallel
sequentially: one after another | one by one | one at a time
start: kick off
starts: kicks off
started: kicked off
pr: pull request | merge request
prs: pull requests | merge requests
login: sign in | signs in | log in | logs in
setup: set up | sets up
backup: back up | backs up | backed up
rollback: roll back | rolls back | rolled back
fallback: fall back | falls back
shutdown: shut down | shuts down
rollout: roll out | rolled out
because: due to
to: in order to
from: out of
lookup: look up | looks up
cleanup: clean up | cleans up
generally: in general
one: single
"""
_FILLER: Final = """
as was already mentioned | as already mentioned | as mentioned | as mentioned before | as mentioned above | as
discussed | keep in mind that | keep in mind | for the record | just so we remember | for later | for reference |
note that | by the way | as you know | as a reminder | in other words | of course | it turns out that | it is worth
noting that | to be clear | as we know | as agreed | as before | good to know | for your information
"""
_SYNONYMS: Final = """
database db databases | kubernetes k8s kube | postgres postgresql pg | configuration config configs configurations |
repository repo repos repositories | environment env | production prod | development dev | documentation docs
documents doc | application app apps applications | authentication auth authn | integer int integers | javascript js |
typescript ts | python py | directory folder directories folders dir | function method | argument arg args arguments |
parameter param params parameters | administrator admin admins administrators | information info | message msg |
number num | package pkg | temporary temp tmp | maximum max | minimum min | specification spec specs |
asynchronous async | reject refuse decline | delete remove erase | start begin launch | change modify alter edit |
fix repair resolve | respond answer reply response | show display | buy purchase | choose pick select |
verify validate | limit cap restrict | name call | mark flag label | own owner | allow permit let | enable activate |
need require | run execute host operate | use utilise utilize employ | prefer favour favor | handle process |
hold keep store save live reside sit locate place contain lie | big large | fast quick rapid | short brief |
error failure | ticket issue | get receive obtain | simultaneous simultaneously concurrently | sequentially serially |
license licence | colour color | behaviour behavior | labelled labeled label | happen occur | try attempt |
finish complete | help assist | expire lapse | cancel abort | find discover | deploy deployment |
format formatter formatting | lint linter | email mail | website site | picture image
"""
_IRREGULAR: Final = """
kept/keep built/build sent/send written/write wrote/write held/hold found/find ran/run made/make taken/take
took/take given/give gave/give chosen/choose chose/choose shown/show paid/pay began/begin begun/begin broken/break
broke/break told/tell sold/sell brought/bring bought/buy thought/think left/leave lost/lose met/meet went/go gone/go
came/come grew/grow grown/grow drawn/draw drew/draw driven/drive fallen/fall fell/fall hidden/hide spent/spend
stood/stand understood/understand dealt/deal meant/mean lay/lie lain/lie indices/index indexes/index matrices/matrix
children/child people/person analyses/analysis criteria/criterion caught/catch taught/teach led/lead fed/feed
bound/bind rebuilt/rebuild rewritten/rewrite reran/rerun overwritten/overwrite thrown/throw threw/throw
"""
_UNSTEMMED: Final = """
production staging testing during string thing bring nothing everything news https s3 aws dns redis
"""


def _table(text: str) -> dict[str, str]:
    """Each line is `meaning: phrase | phrase`; indented lines go on."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    pairs = (line.split(": ", 1) for line in lines)
    return {phrase.strip(): meaning for meaning, phrases in pairs for phrase in phrases.split(" | ")}


PHRASES: Final = _table(_PHRASES) | dict.fromkeys(" ".join(_FILLER.split()).split(" | "), "")
"""Word sequences and what the judge reads in their place. Longer ones win; filler is read as nothing."""

_GROUPS: Final = [group.split() for group in " ".join(_SYNONYMS.split()).split(" | ")]
SYNONYMS: Final = {word: group[0] for group in _GROUPS for word in group}
IRREGULAR: Final = dict(pair.split("/") for pair in _IRREGULAR.split())
UNSTEMMED: Final = frozenset(_UNSTEMMED.split())
"""Words whose ending is not an inflection, or whose stem is another word (production, product)."""

NUMBERS: Final = (
    {
        word: value
        for value, word in enumerate(
            [
                "zero",
                "one",
                "two",
                "three",
                "four",
                "five",
                "six",
                "seven",
                "eight",
                "nine",
                "ten",
                "eleven",
                "twelve",
                "thirteen",
                "fourteen",
                "fifteen",
                "sixteen",
                "seventeen",
                "eighteen",
                "nineteen",
            ]
        )
    }
    | dict(
        zip(
            ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"],
            range(20, 100, 10),
            strict=True,
        )
    )
    | {"twice": 2, "thrice": 3}
)
MULTIPLIERS: Final = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
SUFFIXES: Final = {"k": 1000, "m": 10**6, "bn": 10**9}
MONTHS: Final = {
    name: number
    for number, names in enumerate(
        [
            "january jan",
            "february feb",
            "march mar",
            "april apr",
            "may",
            "june jun",
            "july jul",
            "august aug",
            "september sep sept",
            "october oct",
            "november nov",
            "december dec",
        ],
        1,
    )
    for name in names.split()
}
UNITS: Final = {
    **dict.fromkeys(["ms", "msec", "millisecond", "milliseconds"], ("time", 0.001)),
    **dict.fromkeys(["s", "sec", "secs", "second", "seconds"], ("time", 1.0)),
    **dict.fromkeys(["min", "mins", "minute", "minutes"], ("time", 60.0)),
    **dict.fromkeys(["h", "hr", "hrs", "hour", "hours"], ("time", 3600.0)),
    **dict.fromkeys(["d", "day", "days"], ("time", 86400.0)),
    **dict.fromkeys(["week", "weeks"], ("time", 604800.0)),
    **dict.fromkeys(["month", "months"], ("months", 1.0)),
    **dict.fromkeys(["year", "years", "yr", "yrs"], ("months", 12.0)),
    **dict.fromkeys(["%", "percent", "pct"], ("percent", 1.0)),
    **dict.fromkeys(["byte", "bytes"], ("bytes", 1.0)),
    **{f"{p}b": ("bytes", 1000.0**i) for i, p in enumerate("kmgt", 1)},
    **{f"{p}ib": ("bytes", 1024.0**i) for i, p in enumerate("kmgt", 1)},
}
"""Unit word to its dimension and its factor to that dimension's base (seconds, months, bytes, percent)."""
