from .grammar import Grammar as Grammar
