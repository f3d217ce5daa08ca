from .changes import Change as Change, compare as compare
from .profiles import Entry as Entry, Profile as Profile, profile_texts as profile_texts
