"""Search a list for entries that have no effect, hit too much, or look like mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from antislop.lists.lint.entries import Finding, FindingKind, find_contained, find_duplicates
from antislop.lists.lint.vocabulary import VocabularySurfaces, find_untypable
from antislop.lists.lint.words import find_common, find_faults, find_joined
from antislop.matching.bans import Ban


def lint(
    bans: Sequence[Ban],
    *,
    frequencies: Mapping[str, float] | None = None,
    vocabulary: VocabularySurfaces | None = None,
) -> list[Finding]:
    """Return the faults of the entries of a list, in order.

    frequencies: of words in lower case, as `load_frequencies` returns them; needed to find common words and missing
        commas.
    vocabulary: of a model; needed to find what it can't write.

    >>> [(finding.fault, finding.fix) for finding in lint([Ban("a testament to"), Ban("testament")])]
    [("'a testament to' contains 'testament', which forbids it already", 'leave it out')]
    """
    checks = [find_duplicates(bans), find_contained(bans), find_faults(bans)]
    if frequencies is not None:
        checks += [find_common(bans, frequencies), find_joined(bans, frequencies)]
    if vocabulary is not None:
        checks.append(find_untypable(bans, vocabulary))
    findings: dict[int, list[Finding]] = defaultdict(list)
    for check in checks:
        for finding in check:
            if not _makes_superfluous({other.kind for other in findings[finding.index]}, finding.kind):
                findings[finding.index].append(finding)
    return [finding for index in sorted(findings) for finding in findings[index]]


def _makes_superfluous(kinds: set[FindingKind], kind: FindingKind) -> bool:
    """Return whether the faults of an entry make another one superfluous, as of an entry that is to be left out."""
    return bool(kinds & {"duplicate", "contained"}) or (kind == "common" and bool(kinds & {"short", "common"}))
