from .ban_list import Diff as Diff, Refusal as Refusal, SearchStep as SearchStep
from .patterns.loop import Loop as Loop
from .patterns.pattern import Pattern as Pattern
from .patterns.phrase import Phrase as Phrase
from .patterns.regex import Regex as Regex
from .patterns.repeat import Repeat as Repeat
from .patterns.tokens import Tokens as Tokens
from .patterns.words import Wildcard as Wildcard, Words as Words
from .token_matcher import Matcher as Matcher, Violation as Violation
