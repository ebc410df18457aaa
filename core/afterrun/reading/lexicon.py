"""Closed classes of English words that the deterministic judge knows: data only, no rules.

They are word classes of the language and of software work in general, written down by hand. A word that is in none of
them is a content word and has to be matched by the other text as it is (after light stemming).
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _classes(table: str) -> dict[str, str]:
    """Word to class; each line is `class: words`."""
    lines = (line.split(": ") for line in table.strip().splitlines())
    return {word: name.strip() for name, words in lines for word in words.split()}


STOP: Final = _words(
    """a an the this that these those it its they them their theirs we us our ours you your yours i me my mine he she
    his her hers him who whom whose which what where when while there here and or so as of in on at for with by
    to from into onto via per than then if be is are was were been being am have has had having do does did
    doing done get gets got getting gotten through under over about between among across within during because
    since such also too just already mentioned remember note noted reminder please fyi btw later actually
    basically currently now really very quite simply said known once both own how why up out off ever set"""
)
"""Function words and filler: a text says the same without them."""

DETERMINERS: Final = _words("a an the this that these those its their our your my his her each every all any some no")
AUXILIARIES: Final = _words("is are was were be been being am do does did has have had will would may can must should")
PRESENT: Final = _words("is are am has have does do")
PAST: Final = _words("was were had did took gave chose began broke came grew drew fell went threw ran drove")
RELATIVES: Final = _words("that which who where what whose")
MARKERS: Final = _words(
    "from to into onto over than before after by in on at for with as via through between under until since against"
    " above below during not when if because once while whenever unless"
)
"""Words that give the phrase after them its part in the sentence."""

SAME_MARKER: Final = {"into": "to", "onto": "to", "than": "over", "via": "through"}
DIRECTED: Final = _words(
    "from to over before after by until since against under above below when if because once while whenever unless"
)
"""Markers behind which two phrases cannot change places without another meaning."""
_OPPOSED_MARKERS: Final = """
from/to before/after before/during during/after under/over above/below by/to for/against because/when because/if
because/while
"""
OPPOSED_MARKERS: Final = frozenset(
    pair for text in _OPPOSED_MARKERS.split() for pair in (tuple(text.split("/")), tuple(text.split("/")[::-1]))
)
TIME_MARKERS: Final = _words("for in after")
"""Markers behind which a span of time is a duration, a delay or a start."""
PERSONS: Final = _classes("""
    i: i me my mine
    you: you your yours
    he: he him his
    she: she her hers
    we: we us our ours
    they: they them their theirs
""")
FRACTIONS: Final = _words("third thirds quarter quarters fifth fifths tenth tenths")

NEGATORS: Final = _words("not never no nobody none nothing neither nor without nowhere")
QUANTIFIERS: Final = _classes("""
    all: all every each everybody everyone everything always any anybody anyone whenever entire
    some: some several sometimes somebody someone partly partially occasionally certain
    most: most mostly usually often generally typically mainly many
    few: few little rarely seldom hardly barely
    only: only solely exclusively
    none: nobody none nothing
    half: half
    alternate: alternate alternating
    almost: almost nearly
""")
MODALS: Final = _classes("""
    may: may can could allow allowed allows permit permitted permits
    must: must shall need needs needed require requires required mandatory obligatory
    should: should ought recommended advised
    perhaps: might maybe perhaps possibly probably presumably likely said apparently allegedly supposedly reportedly
    will: will would planned plans plan going soon
""")
MODAL_ONLY: Final = _words("may can could must shall should ought might maybe perhaps will would")
"""Modal words that say nothing but the modality; the other ones are content as well."""

COMPARATORS: Final = _classes("""
    at least: atleast minimum min orhigher >= ≥
    at most: atmost maximum upto orlower within <= ≤
    more than: morethan above over >
    less than: lessthan below under <
    exactly: exactly
    about: about roughly approximately around ~
""")
COMPARATORS_BY_NUMBER: Final = _words("within above over below under about around ~")
"""Comparators that are ordinary words unless a number follows."""

ENVIRONMENTS: Final = _words("production staging development sandbox preview local test testing qa uat canary")
LIGHT: Final = frozenset({"use", "have", "make", "be"})
"""Verbs that pass a negation on to what follows: "do not use bullets" denies the bullets."""
REVISERS: Final = _words(
    """until unless except but however although though instead if otherwise formerly previously originally earlier
    temporarily former deprecated obsolete outdated superseded replaced replace replaces reverted reopened
    cancelled canceled abandoned dropped removed stopped ceased anymore longer failed fails fail lacks lack
    missing prevents avoids skips ignores blocked tried tries attempted intended supposed expected proposed
    considered rejected refused false wrong incorrect untrue changed switched migrated moved lowered raised
    increased decreased reduced bumped renamed update correction still yet disagree doubt unclear unknown todo
    wip off out"""
)
"""Words with which an addition may take back, limit or change what the rest says."""

_OPPOSITES: Final = """
enable/disable allow/deny allow/forbid allow/block true/false on/off yes/no before/after first/last start/stop
open/close lock/unlock add/remove increase/decrease raise/lower above/below up/down left/right read/write
public/private internal/external sync/async synchronous/asynchronous parallel/sequential primary/secondary
primary/failover old/new ascending/descending minimum/maximum include/exclude accept/reject success/failure
pass/fail valid/invalid mutable/immutable online/offline local/remote always/never upper/lower early/late
input/output source/target client/server push/pull encrypt/decrypt compress/decompress import/export upload/download
sensitive/insensitive stateful/stateless required/optional opt-in/opt-out inside/outside even/odd fixed/reopened
buy/sell send/receive blue/green soft/hard cold/hot short/long big/small
"""
OPPOSITES: Final = frozenset(frozenset(pair.split("/")) for pair in _OPPOSITES.split())
"""Pairs of words that contradict each other where one text has the one and the other the other."""

TIME_ZONES: Final = _words("utc gmt cet cest est edt pst pdt cst cdt mst mdt bst ist jst aest wet eet msk")

SEQUENCE: Final = _words("then next finally afterwards afterward first firstly secondly last lastly subsequently")
"""Words that say in which order things happen: with them the order of the rest is the meaning."""
ENGLISH: Final = (
    STOP
    | AUXILIARIES
    | DETERMINERS
    | MARKERS
    | _words("two three four five seven eight nine twelve twenty fifty hundred thousand")
    | MODALS.keys()
    | COMPARATORS.keys()
    | _words("only never use")
)
FOREIGN: Final = _words(
    """el la los las un una uno de del y que en por para con se su al como más pero no es son está le les des du et est
    dans pour sur avec pas ne une au aux qui sont der die das und ist nicht ein eine einen dem den von zu mit
    auf für wird werden bei im os as um uma do da dos das em não são com ao à il lo gli di che non per della het
    een van niet voor met op och att det som är inte av till jest nie na się z w dla ve bir bu için ei ja on
    ovat"""
) - _words("as do on no die met per van w z da")
