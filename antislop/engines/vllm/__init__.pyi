from .check import CheckBans as CheckBans, CheckRequestBans as CheckRequestBans
from .requests import banning as banning
from .scheduler import BanningScheduler as BanningScheduler
