from .grammar.grammar import Grammar as Grammar
from .passages import BestOf as BestOf, Regenerate as Regenerate, Replace as Replace
