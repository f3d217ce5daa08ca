from .ban_list import (
    BanList as BanList,
    Bans as Bans,
    Diff as Diff,
    Refusal as Refusal,
    SearchStep as SearchStep,
    read_bans as read_bans,
)
from .bans import KINDS as KINDS, Ban as Ban, Match as Match
from .characters import Surfaces as Surfaces, decode as decode
from .folding import (
    Edges as Edges,
    Folding as Folding,
    compose as compose,
    find_words as find_words,
    fold_text as fold_text,
)
from .patterns.loop import Loop as Loop
from .patterns.pattern import Fault as Fault, Pattern as Pattern, TextSearch as TextSearch, Tokens as Tokens
from .patterns.phrase import Automaton as Automaton, Phrase as Phrase
from .patterns.regex import Regex as Regex
from .patterns.repeat import Repeat as Repeat
from .patterns.words import Wildcard as Wildcard, Words as Words, stop_words as stop_words
from .scopes import BanScope as BanScope, Scope as Scope
from .token_matcher import Matcher as Matcher, Violation as Violation
from .units import SENTENCE_END as SENTENCE_END, Opening as Opening, Unit as Unit
