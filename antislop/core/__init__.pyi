from . import bans as bans, hf as hf, loop as loop, trace as trace
