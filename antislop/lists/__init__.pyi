from .bundled import bundled_bans as bundled_bans, read_constructions as read_constructions
from .entries import read_sent_ban as read_sent_ban
from .limits import SENT_LIMITS as SENT_LIMITS
from .own import parse_ban as parse_ban, write_lines as write_lines
from .reading import read_list as read_list
from .signs import (
    NAME_KIND as NAME_KIND,
    find_shared_sign as find_shared_sign,
    find_sign as find_sign,
    looks_like_regex as looks_like_regex,
)
