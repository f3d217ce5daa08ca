from .activations import ActivationCache as ActivationCache, run_with_cache as run_with_cache
from .console import to_plain as to_plain, to_rich as to_rich
from .forward_result import (
    Alternative as Alternative,
    Explanation as Explanation,
    ForwardResult as ForwardResult,
    RejectedAttempt as RejectedAttempt,
)
