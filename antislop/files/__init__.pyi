from .journal import read_records as read_records
from .models import ModelSpec as ModelSpec
from .prompts import Prompt as Prompt, read_prompts as read_prompts
from .texts import Text as Text, read_texts as read_texts
