from .ban_list import (
    BanList as BanList,
    Bans as Bans,
    Diff as Diff,
    Refusal as Refusal,
    SearchStep as SearchStep,
    combine_bans as combine_bans,
    read_bans as read_bans,
)
from .bans import KINDS as KINDS, Ban as Ban, Match as Match, drop_overlaps as drop_overlaps
from .bundled import (
    constructions as constructions,
    dashes as dashes,
    default_bans as default_bans,
    held_out_bans as held_out_bans,
    loops as loops,
    read_constructions as read_constructions,
    repeats as repeats,
)
from .characters import decode as decode
from .faults import find_faults as find_faults, find_superfluous as find_superfluous
from .folding import (
    SENTENCE_ENDS as SENTENCE_ENDS,
    Edges as Edges,
    Folding as Folding,
    find_words as find_words,
    fold_text as fold_text,
)
from .formats.formats import parse_ban as parse_ban, write_lines as write_lines
from .marks import NO_REGEX as NO_REGEX, REGEX as REGEX, find_sign as find_sign
from .patterns.loop import Loop as Loop
from .patterns.pattern import (
    Pattern as Pattern,
    Tokens as Tokens,
    has_word as has_word,
)
from .patterns.phrase import Phrase as Phrase
from .patterns.regex import Regex as Regex
from .patterns.repeat import Repeat as Repeat
from .patterns.words import Wildcard as Wildcard, Words as Words, stop_words as stop_words
from .reading import SENT_LIMITS as SENT_LIMITS, is_kind as is_kind, make_ban as make_ban
from .scopes import THOUGHTS as THOUGHTS, BanScope as BanScope, Regions as Regions, Scope as Scope
from .token_matcher import Matcher as Matcher, Surfaces as Surfaces, Violation as Violation
