"""Options that commands share: where prompts come from and how texts are sampled."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from antislop.terminal import Refused

_option = typer.Option
_MIN_P_HELP = "Keep tokens at least p times as likely as the likeliest; 0 is off."

Column = Annotated[str | None, _option(help="Where the prompt is.", show_default="prompt, messages, …")]
Key = Annotated[str | None, _option(help="What identifies a record.", show_default="id, prompt_id, or number")]
Split = Annotated[str, _option(help="Of a data set.")]
Template = Annotated[str | None, _option(help="Text around each prompt: 'Write about {prompt}.'")]
System = Annotated[str | None, _option(help="The system message of each chat.")]
Limit = Annotated[int | None, _option(min=1, help="Read so many records.")]
Samples = Annotated[int, _option(min=1, help="Responses to each prompt.")]
MaxNewTokens = Annotated[int, _option(min=1, help="Tokens of a response, at most.")]
Temperature = Annotated[float, _option(min=0.0, help="0 always takes the likeliest token.")]
MinP = Annotated[float, _option(min=0.0, max=1.0, help=_MIN_P_HELP)]
TopP = Annotated[float, _option(min=0.0, max=1.0, help="Keep the likeliest tokens that make up p; 1 is off.")]
TopK = Annotated[int, _option(min=0, help="Keep the k likeliest tokens; 0 is off.")]
RepetitionPenalty = Annotated[float | None, _option(show_default="off", help="Above 1, repeat less.")]
StopStrings = Annotated[list[str] | None, _option("--stop", metavar="STRING", help="End with this string. Repeatable.")]
BatchSize = Annotated[int, _option(min=1, help="Texts that are written at a time.")]
Seed = Annotated[int, _option(help="With a record's key it decides its text.")]


def make_settings(
    max_new_tokens: int,
    temperature: float,
    min_p: float,
    top_p: float,
    top_k: int,
    repetition_penalty: float | None,
    stop: list[str] | None,
) -> dict[str, Any]:
    """Return what `generate` takes; what is not asked for is left out, so that older runs can be gone on with."""
    if repetition_penalty is not None and repetition_penalty <= 0:
        raise Refused(f"the repetition penalty is {repetition_penalty}, but must be above 0: 1 is none, 1.1 is common")
    drawn = {"temperature": temperature, "min_p": min_p, "top_p": top_p, "top_k": top_k} if temperature else {}
    more = {"repetition_penalty": repetition_penalty, "stop_strings": stop}
    return {
        "max_new_tokens": max_new_tokens,
        "do_sample": bool(drawn),
        **drawn,
        **{name: value for name, value in more.items() if value},
    }
