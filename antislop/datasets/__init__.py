"""Data sets of generated texts: from prompts to records and preference pairs, resumed after a crash.

maker = ModelRecordMaker(model, tokenizer, bans, settings={"max_new_tokens": 300, "do_sample": True})
with open_journal("out.jsonl", {"seed": 0}) as journal:
    for record in write_records(maker, lambda: read_prompts("prompts.jsonl"), journal):
        print(record["response"])
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
