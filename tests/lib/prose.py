"""What a machine can hold of the documents' prose: length, one title, and the glossary's words."""

import re

# Words, which have a letter or a digit; bars of tables are none.
WORDS = re.compile(r"\S*\w\S*")
WORDS_OF_A_PAGE_MAX = 6_000
WORDS_MAX = 45_000
# Made from code, each by a test that compares it.
GENERATED = {"docs/CLI.md", "docs/TUNABLES.md"}
COUNTERS = re.compile(r"^\| `counters\..*$", re.M)
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
# In an old meaning, or in no language; what to write instead.
OLD = {
    r"second chances?": "swap-cache hit",
    r"(?:sinks?|sunk|sinking)": "demote",
    r"pages? (?:is|are) raised": "promote",
    r"lenders?|lending servers?": "donor",
    r"so many": "a number, or how many",
    r"anew": "again",
    r"(?:is|are|was|were) told": "who reports what to whom",
    r"see there": "a link",
}


def by_hand(name, text):
    """The words of a page that are written by hand."""
    if name in GENERATED:
        return 0
    return len(WORDS.findall(COUNTERS.sub("", text)))


def wrong(name, text):
    """What is wrong with a page."""
    found, words = [], by_hand(name, text)
    if words > WORDS_OF_A_PAGE_MAX:
        found.append(f"{name}: {words} words; a page has {WORDS_OF_A_PAGE_MAX} at most")
    prose = CODE.sub(lambda m: "\n" * m[0].count("\n"), text)
    titles = re.findall(r"^# .*$", prose, re.M)
    if len(titles) != 1:
        found.append(f"{name}: {len(titles)} titles (lines that begin with one #); a page has one")
    for number, line in enumerate(prose.splitlines(), 1):
        for old, new in OLD.items():
            if at := re.search(rf"\b(?:{old})\b", line, re.I):
                found.append(f"{name}:{number}: \"{at[0]}\"; write {new}")
    return found


def too_many(words):
    """What is wrong with documents of `words` words written by hand in all."""
    return [f"the documents have {words} words written by hand; {WORDS_MAX} are the most"] if words > WORDS_MAX else []
