from .maker import (
    EndpointMaker as EndpointMaker,
    ModelRecordMaker as ModelRecordMaker,
    RecordMakerBase as RecordMakerBase,
)
from .ray_cluster import Cluster as Cluster
from .rewards import BanReward as BanReward, Rollout as Rollout, ban_reward as ban_reward, rollout as rollout
from .samples import measure_slop as measure_slop
from .writing import PairFile as PairFile, open_journal as open_journal, write_records as write_records
