from .definitions import Metric as Metric
from .estimates import Estimate as Estimate
from .metrics import measure as measure
from .occurrences import Occurrence as Occurrence, scan as scan
from .slop_scale import Scale as Scale
from .tally import Tally as Tally
