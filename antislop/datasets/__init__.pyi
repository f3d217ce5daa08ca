from .endpoint_maker import EndpointMaker as EndpointMaker
from .maker import ModelRecordMaker as ModelRecordMaker, RecordMakerBase as RecordMakerBase
from .ray_cluster import Cluster as Cluster
from .rewards import BanReward as BanReward, ban_reward as ban_reward
from .rollout import Rollout as Rollout, rollout as rollout
from .samples import measure_slop as measure_slop
from .writing import PairFile as PairFile, open_journal as open_journal, write_records as write_records
