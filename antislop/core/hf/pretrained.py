"""Load models by name: the bundled one, one that a package carries, one of the hub, or a folder.

Torch is imported only then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path
from socket import gaierror, getaddrinfo
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from antislop.core.hf.carried import CARRIED, find_carried
from antislop.data import FOLDER
from antislop.errors import InputError, first_line, needing_models
from antislop.files.disk import read_json, read_path

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast


TINY = FOLDER / "tiny"
BUNDLED = "the bundled model"
"""The name of the bundled model in messages and files."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, and how.

    name: a Hugging Face id, a folder, or a name of `carried`; None: the bundled model.
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
        if self.device_map is not None and self.device != "auto":
            raise InputError("--device and --device-map exclude each other: a map says itself which devices it takes")
        for option, value in (("--revision", self.revision), ("--trust-remote-code", self.trust_remote_code or None)):
            if value is not None and (self.name is None or find_carried(self.name)):
                raise InputError(f"{option} means nothing for {self.title}: leave it out, or pass another --model")

    @property
    def title(self) -> str:
        return BUNDLED if self.name is None else f"the model {self.name!r}"

    def find_source(self) -> str:
        """Return the folder or the id that transformers loads, after converting a model of a package."""
        if self.name is None:
            return str(TINY)
        carried = find_carried(self.name)
        return self.name if carried is None else carried.find_source()

    @property
    def content(self) -> dict[str, str | None]:
        """The options that the texts depend on; None for those that were not chosen."""
        dtype = None if self.dtype == "auto" else self.dtype
        return {"model": self.name or self.title, "revision": self.revision, "dtype": dtype}


def tiny_model() -> tuple[Any, PreTrainedTokenizerFast]:
    """Load the bundled (model, tokenizer): a small Llama that writes sloppy English fiction, to try the sampler.

    512 positions, including the prompt; float32 on the CPU.
    """
    with needing_models("antislop.tiny_model()"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), AutoTokenizer.from_pretrained(TINY)


def load_model(model: ModelSpec | str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load (model, tokenizer). Raises `InputError` if they can't be loaded."""
    spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
    with _loading(spec, spec.title, advice=_advise_on_model(spec)):
        from transformers import AutoModelForCausalLM

        device = None if spec.device_map else choose_device(spec.device)
        source, base = spec.find_source(), _find_base(spec)
        is_small = spec.name is None or find_carried(spec.name) is not None or base is not None
        dtype = "float32" if is_small and spec.dtype == "auto" else spec.dtype
        options = _list_chosen(spec, device_map=spec.device_map, attn_implementation=spec.attention)
        loaded = AutoModelForCausalLM.from_pretrained(base or source, dtype=dtype, **options)
        if base is not None:
            loaded.load_adapter(source)
        return loaded if device is None else loaded.to(device), _load_tokenizer(spec)


def load_tokenizer(model: ModelSpec | str | None) -> PreTrainedTokenizerBase:
    spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
    with _loading(spec, f"the tokenizer of {spec.title}", advice="pass a model's Hugging Face id or folder"):
        return _load_tokenizer(spec)


def choose_device(name: str) -> torch.device:
    """Return the device of a name, or for "auto" the first available of cuda, mps and cpu."""
    import torch

    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    available = [*(["cuda", *cuda] if cuda else []), *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
    if name not in ("auto", *available):
        raise InputError(f"--device {name}: there is no such device here: pass one of auto, {', '.join(available)}")
    return torch.device(available[0] if name == "auto" else name)


@contextmanager
def _loading(spec: ModelSpec, what: str, *, advice: str) -> Iterator[None]:
    """Silence transformers inside, and turn its errors into an `InputError` that ends with advice."""
    from transformers.utils import logging

    if fault := _find_fault(spec):
        carried = find_carried(spec.name)
        way = "check the name, the path or the connection" if carried is None else f"install it: {carried.install}"
        raise InputError(f"{what} can't be loaded ({fault}): {way}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)  # or each of its retries would be a line
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise InputError(f"{what} can't be loaded ({first_line(error)}): {advice}") from error


def _find_fault(spec: ModelSpec) -> str | None:
    """Return why a model can't be found, where transformers would speak of repositories, or try again for minutes."""
    from huggingface_hub import constants, try_to_load_from_cache

    if spec.name is None or read_path(spec.name).exists():
        return None
    carried = find_carried(spec.name)
    if carried is not None and (carried.folder.is_dir() or carried.find_gguf() is not None):
        return None
    name = spec.name if carried is None else carried.hub
    if not _HUB_ID.fullmatch(name):
        return f"there is no folder {name}"
    files = ("config.json", "tokenizer_config.json", "adapter_config.json")
    is_cached = any(isinstance(try_to_load_from_cache(name, file, revision=spec.revision), str) for file in files)
    host = urlsplit(constants.ENDPOINT).hostname
    if is_cached or not (constants.HF_HUB_OFFLINE or (not getproxies() and not _has_address(host))):
        return None
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{host} can't be reached"
    what = "there is no such folder" if carried is None else "its package is not installed"
    return f"{what}, it is not in the cache, and {reason}"


def _has_address(host: str | None) -> bool:
    try:
        return bool(getaddrinfo(host, None))
    except gaierror:
        return False


def _find_base(spec: ModelSpec) -> str | None:
    """Return the source of the model that an adapter is for, if a package carries it; transformers finds others."""
    config = Path(spec.name or TINY, "adapter_config.json")
    name = read_json(config).get("base_model_name_or_path") if config.is_file() else None
    return next((model.find_source() for model in CARRIED.values() if model.hub == name), None)


def _advise_on_model(spec: ModelSpec) -> str:
    if spec.name is not None:
        return "pass a causal language model's Hugging Face id or folder, and options that it supports"
    return "install antislop again" if spec == ModelSpec() else "change the options of the model"


def _list_chosen(spec: ModelSpec, **others: str | None) -> dict[str, Any]:
    options = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code or None, **others}
    return {name: value for name, value in options.items() if value is not None}


def _load_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(spec.find_source(), **_list_chosen(spec))
    return tokenizer
