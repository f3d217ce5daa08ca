"""Train the bundled tiny model: a small Llama on model-written fiction, for CPU cores and an hour.

    torchrun --nproc-per-node 2 data/tiny/train.py --texts LLM --phrases PHRASES.json --minutes 70 --out data/tiny/run

Prints the loss on the training and the held-out documents (nats per token) and ends with a folder that
``AutoModelForCausalLM`` and ``AutoTokenizer`` load. The learning rate follows the clock, not the step
count, so a run on a busy machine still ends well. What counts as prose is decided in corpus.py.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from corpus import load_phrases, read_outputs, select
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 512
VOCABULARY = 4096
BOS, EOS = 0, 1


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that puts ``<s>`` in front of every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)]),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model() -> LlamaForCausalLM:
    """Return the untrained model: 3.8M parameters, under 8 MB in float16."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=EOS,
            # Compiled, eager attention takes 0.8 of the time of sdpa here: 0.45 against 0.58 s a step.
            attn_implementation="eager",
        )
    )


def pack(texts: list[str], *, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return all texts as one row of token ids, each between ``<s>`` and ``</s>``."""
    encoded = tokenizer(texts, add_special_tokens=True)["input_ids"]
    return torch.tensor([token for ids in encoded for token in (*ids, EOS)], dtype=torch.int32)


def sample_batch(tokens: Tensor, *, rows: int, generator: torch.Generator) -> Tensor:
    """Draw windows at random: [rows, CONTEXT + 1]."""
    starts = torch.randint(len(tokens) - CONTEXT - 1, (rows,), generator=generator)
    return torch.stack([tokens[start : start + CONTEXT + 1] for start in starts.tolist()]).long()


@torch.compile
def measure_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of a batch of windows, in nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: nn.Module, tokens: Tensor, *, windows: int = 64) -> float:
    """Return the loss over evenly spaced windows of ``tokens``."""
    starts = torch.linspace(0, len(tokens) - CONTEXT - 1, windows).long().tolist()
    batches = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts]).long().split(8)
    return sum(measure_loss(model, batch).item() for batch in batches) / len(batches)


def build_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for the rest."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    inner_ids = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in inner_ids]
    return [
        torch.optim.Muon(inner, lr=0.015, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=0.006, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def schedule(share: float, *, step: int, warmup: int = 150) -> float:
    """Return the factor on the learning rate when ``share`` of the time is over: cosine to 2 %."""
    return min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0))))


def average(tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over the processes, in one exchange."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def train(model: LlamaForCausalLM, *, tokens: Tensor, held_out: Tensor, minutes: float, rows: int, seed: int) -> dict:
    """Train until the time is up and return what happened; every process runs this."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed + rank)
    optimizers = build_optimizers(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    began, step, losses = time.monotonic(), 0, []
    while True:
        clock = torch.tensor([(time.monotonic() - began) / (60 * minutes)])
        dist.broadcast(clock, 0)
        if (share := clock.item()) >= 1:
            break
        loss = measure_loss(model, sample_batch(tokens, rows=rows, generator=generator))
        loss.backward()
        average([p.grad for p in model.parameters()])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * schedule(share, step=step)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        step += 1
        if rank == 0 and step % 250 == 0:
            passed = time.monotonic() - began
            speed = step * rows * CONTEXT * processes / passed
            print(
                f"{passed / 60:5.1f} min  step {step:6d}  {speed:6.0f} tokens/s  "
                f"train {sum(losses[-250:]) / 250:.3f}  held out {evaluate(model, held_out):.3f}",
                flush=True,
            )
    return {
        "steps": step,
        "tokens": step * rows * CONTEXT * processes,
        "train_loss": sum(losses[-250:]) / len(losses[-250:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="folder with the models' writing")
    parser.add_argument(
        "--phrases", type=Path, required=True, help="JSON list of [phrase, count], to rank texts by slop"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=70)
    parser.add_argument("--rows", type=int, default=8, help="windows per process and step")
    parser.add_argument("--keep", type=float, default=0.85, help="share of the texts to keep, those with the most slop")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    texts = select(read_outputs(arguments.texts), phrases=load_phrases(arguments.phrases), keep=arguments.keep)
    random.Random(arguments.seed).shuffle(texts)
    aside = [text for text in texts if zlib.crc32(text[:300].encode()) % 50 == 0]
    texts = [text for text in texts if zlib.crc32(text[:300].encode()) % 50]
    tokenizer = train_tokenizer(texts[:2500])
    tokens, held_out = pack(texts, tokenizer=tokenizer), pack(aside, tokenizer=tokenizer)
    model = build_model()
    facts = {
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        "corpus_tokens": len(tokens),
        "held_out_documents": len(aside),
        "held_out_tokens": len(held_out),
        "parameters": model.num_parameters(),
        "minutes": arguments.minutes,
        "seed": arguments.seed,
        "torch": torch.__version__,
    }
    if dist.get_rank() == 0:
        print(json.dumps(facts, indent=1), flush=True)
    facts |= train(
        model,
        tokens=tokens,
        held_out=held_out,
        minutes=arguments.minutes,
        rows=arguments.rows,
        seed=arguments.seed,
    )
    if dist.get_rank() == 0:
        save(model, tokenizer=tokenizer, held_out=held_out, facts=facts, out=arguments.out)
    dist.destroy_process_group()


def save(
    model: LlamaForCausalLM, *, tokenizer: PreTrainedTokenizerFast, held_out: Tensor, facts: dict, out: Path
) -> None:
    """Write the float16 weights, the tokenizer and ``training.json`` and print the last losses."""
    loss = evaluate(model, held_out, windows=256)
    facts["held_out_loss"] = loss
    facts["held_out_bits_per_character"] = (
        loss / math.log(2) * len(held_out) / len(tokenizer.decode(held_out.tolist(), skip_special_tokens=True))
    )
    model.generation_config.update(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=1), flush=True)


if __name__ == "__main__":
    main()
