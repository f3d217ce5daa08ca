from .definitions import Metric as Metric
from .estimates import Estimate as Estimate
from .metrics import measure as measure
from .slop_scale import Scale as Scale
from .tally import Tally as Tally
