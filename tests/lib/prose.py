"""Checks of the documents' prose: length, one title, and the glossary's words."""

import re

# A word has a letter or a digit; bars of tables are not words.
WORDS = re.compile(r"\S*\w\S*")
WORDS_OF_A_PAGE_MAX = 6_000
WORDS_MAX = 45_000
# Generated from code, and compared with it by a test.
GENERATED = {"docs/CLI.md", "docs/TUNABLES.md"}
COUNTERS = re.compile(r"^\| `counters\..*$", re.M)
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
# Words in a meaning that the glossary replaces, and unclear phrases; with the replacement.
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
    """Number of words of a page that are written by hand."""
    if name in GENERATED:
        return 0
    return len(WORDS.findall(COUNTERS.sub("", text)))


def wrong(name, text):
    """Errors of a page."""
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
    """Errors of documents with `words` words written by hand in total."""
    return [f"the documents have {words} words written by hand; {WORDS_MAX} are the most"] if words > WORDS_MAX else []
