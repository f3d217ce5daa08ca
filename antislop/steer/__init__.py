"""Rules for texts that come with the package: rewrite, replace, choose the best of several, grammars, samplers.

    grammar = Grammar.from_json_schema(schema, tokenizer)
    ids = model.generate(**inputs, custom_generate=sampler, logits_processor=[grammar], max_new_tokens=400)

xgrammar and llguidance are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
