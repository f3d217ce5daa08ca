from .ban_list import Diff as Diff, Refusal as Refusal, SearchStep as SearchStep
