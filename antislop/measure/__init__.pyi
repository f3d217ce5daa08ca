from .definitions import Metric as Metric
from .estimates import Estimate as Estimate
from .metrics import Tally as Tally, measure as measure
from .occurrences import Occurrence as Occurrence, scan as scan
from .profiles.profiles import (
    Change as Change,
    Entry as Entry,
    Profile as Profile,
    compare as compare,
    profile_texts as profile_texts,
)
from .slop import Scale as Scale
