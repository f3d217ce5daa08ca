"""What models are asked to write: openings, which base models continue, and requests to chat models.

`python -m eval.prompts 104 > prompts.jsonl` writes some requests in any order, for `antislop tune` and others.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import product

from transformers import PreTrainedTokenizerBase

STARTS = (
    "The old house at the edge of {0} had been empty for years, until",
    "Nobody in {0} talked about the winter when",
    "My grandmother was born in {0}, and she",
    "The train to {0} stopped between two stations, and",
    "On the first morning of the harvest in {0},",
    "The letter from {0} had been opened before",
    "She had been the doctor of {0} for thirty years when",
    "They had built the bridge to {0} so badly that",
    "When the lights went out in {0}, the two brothers",
    "He came back to {0} with nothing but",
)
PLACES = (
    *("the village", "the harbor", "a small town in the hills", "the capital", "the valley", "the island"),
    *("the mining town", "the old fortress", "the fishing village", "the last station", "the monastery"),
    *("the border", "the river delta", "the northern coast", "the desert city", "the forest"),
)
ASSIGNMENTS = (
    "Write a short story about {0}.\n\n",
    "Here is an essay of five paragraphs about {0}:\n\n",
    "Q: Tell me about {0}. What should a beginner know?\nA:",
    "Below is an instruction. Write a response that completes it.\n\nInstruction: Describe {0}.\n\nResponse:",
    "Blog post: Ten things that I learned about {0}\n\n",
    "Dear editor,\n\nI write to you about {0}.",
    "Review of a book about {0}: ",
    "A speech for the opening of a museum about {0}:\n\nLadies and gentlemen,",
    "Explain {0} to a child of eight.\n\n",
    "A scene in a novel, in which two strangers talk about {0}:\n\n",
)
TOPICS = (
    *("a lighthouse", "the invention of the clock", "a lost dog", "growing tomatoes", "the sea", "a night train"),
    *("friendship", "the first day at a new school", "bread", "an old map", "the moon", "a family dinner"),
    *("climbing a mountain", "a broken violin", "the future of cities", "forgiveness"),
)
PARAGRAPH = "Write the opening paragraph of a story about {0}."
STORIES = (
    PARAGRAPH,
    "Write the first page of a novel about {0}.",
    "Begin a mystery about {0}.",
    "Write the opening scene of a fantasy novel about {0}.",
    "Tell a short story about {0}.",
    "Write a bedtime story about {0}.",
    "Start a historical novel about {0}.",
    "Write the opening of a romance about {0}.",
)
HEROES = (
    *("an old lighthouse", "a clockmaker's daughter", "a lost letter", "a city under the sea", "two rival bakers"),
    *("a winter journey", "a haunted orchard", "the last librarian", "a soldier coming home", "a stolen painting"),
    *("a girl who talks to birds", "a village without clocks", "a storm at sea", "an abandoned theater"),
    *("a secret garden", "a train that never stops", "a detective in retirement", "a mountain monastery"),
    *("a robot gardener", "a family dinner", "a forgotten king", "a desert caravan", "a doctor on an island"),
    *("a music box", "a night market", "a border town", "a glassblower", "a flooded valley", "a chess champion"),
    *("an astronaut's return", "a circus in winter", "a river ferryman", "a school in the woods", "an inheritance"),
    *("a translator at court", "a bridge keeper", "the first snow", "a wedding guest", "a hidden map", "a beekeeper"),
)
TASKS = (
    "Write a short essay about {0}.",
    "Write a blog post about {0}.",
    "Explain {0} to a beginner.",
    "Write a letter to a friend about {0}.",
    "Write a speech about {0}.",
    "Describe {0} in three paragraphs.",
    "Give advice to somebody who is interested in {0}.",
    "Write a magazine article about {0}.",
    "Write a review of a documentary about {0}.",
    "Why does {0} matter? Answer in a few paragraphs.",
)
INTERESTS = (
    *("friendship", "gardening", "the night sky", "public libraries", "learning a language", "old photographs"),
    *("long walks", "cooking for others", "the history of bread", "living in a small town", "jazz", "the ocean"),
    *("teaching children", "a good night's sleep", "the future of cities", "forgiveness", "mountain climbing"),
    *("handwriting", "train travel", "chess", "volunteering", "the invention of the clock", "birdwatching"),
    *("working from home", "museums", "winter", "keeping a diary", "poetry", "rivers", "craftsmanship"),
)


def list_openings() -> list[str]:
    """Return the beginnings of stories, then the assignments, for models that continue a text."""
    return fill(STARTS, PLACES) + fill(ASSIGNMENTS, TOPICS)


def list_requests() -> list[str]:
    """Return 320 requests for stories, of which the first 40 are for a paragraph, then 300 for other texts."""
    return fill(STORIES, HEROES) + fill(TASKS, INTERESTS)


def fill(forms: tuple[str, ...], topics: tuple[str, ...]) -> list[str]:
    return [form.format(topic) for form, topic in product(forms, topics)]


def render(tokenizer: PreTrainedTokenizerBase, request: str) -> str:
    """Return a request as the chat template spells it, with the beginning of the reply."""
    messages = [{"role": "user", "content": request}]
    rendered: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return rendered


if __name__ == "__main__":
    for request in random.Random(0).sample(list_requests(), int(sys.argv[1])):
        print(json.dumps({"messages": [{"role": "user", "content": request}]}))
