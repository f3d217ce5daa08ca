from .best_of import BestOf as BestOf
from .grammar.grammar import Grammar as Grammar
from .regenerate import Regenerate as Regenerate
from .replace import Replace as Replace
