"""Ban phrases from a language model's output, exactly.

    sampler = AntiSlop(tokenizer, ["a testament to", Ban("tapestry", weight=0.1)])
    ids = model.generate(**inputs, custom_generate=sampler, max_new_tokens=400)

Everything is imported when it is first used. `Ban` and `BanList` need neither torch nor transformers.
"""

from pkgutil import iter_modules

import lazy_loader

__version__ = "0.1.0"
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# A star import leaves the packages out: `datasets` is the name of another library, too.
__all__ = sorted({*__all__} - {module.name for module in iter_modules(__path__)})


def __getattr__(name: str) -> object:
    from antislop.errors import needing_models, suggest

    if name in __dir__():
        with needing_models(f"antislop.{name}"):
            return _load(name)
    advice = suggest(name, __dir__(), advice="dir(antislop) lists its names")
    raise AttributeError(f"antislop has no attribute {name}: {advice}")
