from .endpoint_maker import EndpointMaker as EndpointMaker
from .hub import load_records as load_records, push as push, write_parquet as write_parquet
from .maker import ModelRecordMaker as ModelRecordMaker, RecordMakerBase as RecordMakerBase
from .ray_cluster import Cluster as Cluster
from .rewards import BanReward as BanReward, ban_reward as ban_reward
from .samples import (
    MadeRecord as MadeRecord,
    RecordMaker as RecordMaker,
    SampleSpec as SampleSpec,
    Summary as Summary,
    measure_slop as measure_slop,
    plan_samples as plan_samples,
)
from .writing import (
    PairFile as PairFile,
    open_journal as open_journal,
    resume as resume,
    write_records as write_records,
)
