from .ban_list import (
    BanList as BanList,
    Bans as Bans,
    Diff as Diff,
    Refusal as Refusal,
    SearchStep as SearchStep,
    read_bans as read_bans,
)
from .bans import Ban as Ban, Match as Match
from .bundled import bundled_bans as bundled_bans, read_constructions as read_constructions
from .characters import Surfaces as Surfaces, decode as decode
from .faults import find_faults as find_faults, find_superfluous as find_superfluous
from .folding import (
    Edges as Edges,
    Folding as Folding,
    compose as compose,
    find_words as find_words,
    fold_text as fold_text,
)
from .formats.lines import parse_ban as parse_ban, write_lines as write_lines
from .marks import looks_like_regex as looks_like_regex
from .patterns.loop import Loop as Loop
from .patterns.pattern import Pattern as Pattern, Tokens as Tokens
from .patterns.phrase import Phrase as Phrase
from .patterns.regex import Regex as Regex
from .patterns.repeat import Repeat as Repeat
from .patterns.words import Wildcard as Wildcard, Words as Words, stop_words as stop_words
from .reading import SENT_LIMITS as SENT_LIMITS, read_sent_ban as read_sent_ban
from .scopes import BanScope as BanScope, Scope as Scope
from .token_matcher import Matcher as Matcher, Violation as Violation
from .units import SENTENCE_END as SENTENCE_END, Opening as Opening, Unit as Unit
