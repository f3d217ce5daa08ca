"""What does a model overuse, against people? It writes, `profile` compares, and `bans-from` makes its own list.

The texts continue 160 beginnings of stories and 160 assignments, each a combination of parts that are listed here.
"""

from __future__ import annotations

from itertools import product

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


def list_openings() -> list[str]:
    """Return the beginnings of stories, then the assignments."""
    parts = ((STARTS, PLACES), (ASSIGNMENTS, TOPICS))
    return [form.format(topic) for forms, topics in parts for form, topic in product(forms, topics)]
