from .activations import ActivationCache as ActivationCache, run_with_cache as run_with_cache
from .console import to_plain as to_plain, to_rich as to_rich
from .explanation import Alternative as Alternative, Explanation as Explanation, RejectedAttempt as RejectedAttempt
from .forward_result import ForwardResult as ForwardResult
