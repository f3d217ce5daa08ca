"""Data sets of generated texts: records and preference pairs from prompts.

    maker = ModelRecordMaker(model, tokenizer, bans, settings={"max_new_tokens": 300, "do_sample": True})
    with open_journal("out.jsonl", {"seed": 0}) as journal:
        for record in write_records(maker, lambda: read_prompts("prompts.jsonl"), journal):
            print(record["response"])

The same lines resume a run that was stopped.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
