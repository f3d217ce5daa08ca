"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const form = element("form"), key = element("key"), keyField = element("key-field"), mode = element("mode");
  const prompt = element("prompt"), bans = element("bans"), list = element("list");
  const write = element("write"), stop = element("stop"), error = element("error"), state = element("state"), warning = element("warning");
  const text = element("text"), before = element("before"), written = element("written");
  const turns = element("turns"), anew = element("anew"), curl = element("curl");
  const heading = element("text-heading"), counts = element("counts"), rows = element("rows"), news = element("news");
  const PAUSE = 4000, LONGEST = 400, SHOWN = 5;
  const EXAMPLES = { completion: prompt.value, chat: "Write a short scene in which a woman opens a letter." };
  const NO_ANSWER = "The connection to the server failed: check that it is running.";
  let running = null, lists = [], chat = []; // what each item of the menu sends; the messages that were answered

  const make = (name, className, ...children) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  };
  // The space before the first word is not struck through.
  const strike = (withdrawn, [start, end], isNext = false) => {
    const characters = [...withdrawn], cut = (from, to) => characters.slice(from, to).join("");
    const first = Math.max(0, characters.findIndex((character) => character.trim()));
    const parts = [["beside", cut(first, start)], ["withdrawn", cut(Math.max(first, start), end)], ["beside", cut(end)]];
    const spans = parts.filter(([, part]) => part).map(([kind, part]) => make("span", kind, part));
    return make("del", isNext ? "next" : "", cut(0, first), ...spans);
  };
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const toSentence = (message) => {
    const trimmed = message.trim();
    const first = /^\w+_/.test(trimmed) ? trimmed.charAt(0) : trimmed.charAt(0).toUpperCase(); // not in names of fields
    return first + trimmed.slice(1) + (/[.!?…]$/.test(trimmed) ? "" : ".");
  };

  // What a screen reader says: whole sentences, with pauses, and how it ended.
  const speaker = (() => {
    let waiting = "", timer = 0, last = -PAUSE;
    const say = (message) => {
      if (!message.trim()) return;
      news.append(make("p", "", message.trim()));
      while (news.childElementCount > SHOWN) news.firstElementChild.remove();
    };
    const cut = () => {
      const end = Math.max(...[...waiting.matchAll(/[.!?…。！？]["'”’)]*\s|\n/gu)].map((match) => match.index + match[0].length), 0);
      return end || (waiting.length > LONGEST ? waiting.lastIndexOf(" ", LONGEST) + 1 || LONGEST : 0);
    };
    const speak = () => {
      timer = 0;
      const end = cut();
      if (!end) return;
      last = performance.now();
      say(waiting.slice(0, end));
      waiting = waiting.slice(end);
    };
    return {
      start() { clearTimeout(timer); waiting = ""; timer = 0; last = -PAUSE; news.replaceChildren(); },
      add(piece) {
        waiting += piece;
        if (!timer && cut()) timer = setTimeout(speak, Math.max(0, last + PAUSE - performance.now()));
      },
      end(message) { clearTimeout(timer); timer = 0; say(waiting); say(message); waiting = ""; },
    };
  })();

  const showError = (message) => { error.textContent = message; error.hidden = !message; };
  const showState = (message) => { state.textContent = message; };
  const setRunning = (next) => {
    running = next;
    mode.disabled = Boolean(next);
    write.setAttribute("aria-disabled", String(Boolean(next)));
    stop.setAttribute("aria-disabled", String(!next));
    text.classList.toggle("writing", Boolean(next));
  };

  const headers = () => ({
    "Content-Type": "application/json",
    ...(key.value ? { Authorization: `Bearer ${key.value}` } : {}),
  });
  const askForKey = () => {
    const message = key.value ? "The key is wrong: enter the key of this server." : "This server needs a key: enter it above the prompt.";
    keyField.hidden = false;
    key.focus();
    return message;
  };
  const refuse = async (answer) => {
    if (answer.status === 401) return askForKey();
    const body = await answer.json().catch(() => null);
    return toSentence(body?.error?.message ?? `the server answered with status ${answer.status}`);
  };

  // Server-sent events: lines of "data: JSON", an empty line after each; other lines are comments and names.
  async function* readEvents(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  }

  // One text on the page. Places are counted in characters, of which some take two units of a JavaScript string.
  class ShownText {
    constructor(settings) {
      this.settings = settings;
      this.length = 0;
      this.tallies = new Map();
      this.reason = this.usage = null;
      this.text = "";
      before.textContent = settings.prompt;
      before.classList.toggle("message", settings.isChat);
      written.replaceChildren();
      rows.replaceChildren();
      counts.hidden = true;
    }
    add(choice) {
      const said = choice.text ?? choice.delta?.content ?? "", piece = (choice.delta?.reasoning_content ?? "") + said;
      const characters = [...piece];
      let shown = 0;
      for (const withdrawn of choice.antislop?.withdrawn ?? []) {
        const place = Math.min(Math.max(withdrawn.start - this.length, shown), characters.length);
        this.append(characters.slice(shown, place).join(""));
        shown = place;
        written.append(strike(withdrawn.text, withdrawn.banned, written.lastChild instanceof HTMLModElement));
        this.tally(withdrawn);
      }
      this.append(characters.slice(shown).join(""));
      this.length += characters.length;
      this.text += said;
      this.reason = choice.finish_reason ?? this.reason;
      speaker.add(said);
    }
    append(piece) {
      if (!piece) return;
      if (written.lastChild instanceof Text) { written.lastChild.appendData(piece); return; }
      if (/^\S/.test(piece)) written.lastChild?.classList.add("close"); // struck text would touch it
      written.append(piece);
    }
    tally({ ban, text: withdrawn, tokens, banned }) {
      let tally = this.tallies.get(ban);
      if (!tally) {
        const line = make("tr"), name = make("th", "", ban), cells = [make("td", "n"), make("td", "n"), make("td")];
        name.scope = "row";
        line.append(name, ...cells);
        rows.append(line);
        tally = { line, cells, rewinds: 0, tokens: 0, texts: new Set() };
        this.tallies.set(ban, tally);
        counts.hidden = false;
      }
      tally.rewinds += 1;
      tally.tokens += tokens;
      tally.cells[0].textContent = tally.rewinds.toLocaleString("en");
      tally.cells[1].textContent = tally.tokens.toLocaleString("en");
      const shown = withdrawn.trim();
      if (tally.texts.size >= SHOWN || tally.texts.has(shown)) return;
      if (tally.texts.size) tally.cells[2].append(", ");
      tally.texts.add(shown);
      tally.cells[2].append(strike(withdrawn, banned));
    }
    sort() {
      rows.append(...[...this.tallies.values()].sort((a, b) => b.rewinds - a.rewinds || b.tokens - a.tokens).map(({ line }) => line));
    }
    describe() {
      const usage = this.usage, own = usage?.antislop, seed = ` Seed ${this.settings.seed}.`;
      const ends = { length: "The limit of tokens was reached", repetition: "The text ended because it repeated itself" };
      const end = ends[this.reason] ?? "The model ended the text";
      if (!own) return `${end}.${seed}`;
      const conceded = own.conceded ? `, ${count(own.conceded, "ban")} conceded` : "";
      const withdrawn = own.rewinds ? `${own.withdrawn_tokens.toLocaleString("en")} withdrawn in ${count(own.rewinds, "rewind")}` : "none withdrawn";
      return `${end}: ${count(usage.completion_tokens, "token")} kept, ${withdrawn}${conceded}.${seed}`;
    }
  }

  const readSettings = () => {
    const isChat = !mode.hidden && form.elements.mode.value === "chat", chosen = element("seed").value;
    const messages = [...chat, { role: "user", content: prompt.value }];
    return {
      isChat,
      prompt: prompt.value,
      messages,
      path: `v1/${isChat ? "chat/" : ""}completions`,
      body: {
        ...(isChat ? { messages } : { prompt: prompt.value }),
        ...(chosen === "" ? {} : { seed: Number(chosen) }),
        max_tokens: Number(element("length").value),
        temperature: Number(element("temperature").value),
        min_p: Number(element("min-p").value),
        banned_strings: bans.value.split("\n").filter((line) => line.trim()),
        ...lists[list.selectedIndex], // nothing before the server has told its lists
      },
    };
  };
  const send = ({ path, seed, body }, signal) => fetch(`${path}?trace=1`, {
    method: "POST",
    headers: headers(),
    body: JSON.stringify({ ...body, seed, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const quote = (argument) => `'${argument.replaceAll("'", "'\\''")}'`;
  const writeCommand = ({ path, body }) => [
    `curl ${new URL(path, location.href)}`,
    "-H 'Content-Type: application/json'",
    ...(key.value ? ['-H "Authorization: Bearer $API_KEY"'] : []),
    `-d ${quote(JSON.stringify(body, null, 2))}`,
  ].join(" \\\n  ");
  const copyCommand = async () => {
    curl.value = writeCommand(readSettings());
    element("curl-field").hidden = false;
    const isCopied = await navigator.clipboard?.writeText(curl.value).then(() => true, () => false); // none without https
    element("copied").textContent = isCopied ? "Copied." : "Copy it from here: this browser lets no page copy.";
    if (!isCopied) { curl.focus(); curl.select(); }
  };
  const keepTurn = () => {
    if (!written.hasChildNodes()) return;
    turns.append(make("div", "turn text", make("span", "message", before.textContent), make("span", "written", ...written.childNodes)));
  };
  const startAnew = () => {
    chat = [];
    turns.replaceChildren();
    for (const shown of [before, written, rows]) shown.replaceChildren();
    anew.hidden = counts.hidden = true;
    warning.textContent = "";
    showError("");
    showState("");
  };
  const follow = async (stream, shown) => {
    for await (const data of readEvents(stream)) {
      if (data === "[DONE]") return "";
      const event = JSON.parse(data);
      if (event.error) return toSentence(event.error.message);
      shown.usage = event.usage ?? shown.usage;
      for (const choice of event.choices) shown.add(choice);
    }
    return "The server closed the connection before the text ended.";
  };
  const keepMessage = ({ messages }, { text: content }) => {
    if (!content) return;
    chat = [...messages, { role: "assistant", content }];
    anew.hidden = false;
    prompt.value = "";
  };
  const writeText = async () => {
    const settings = readSettings(), control = new AbortController();
    settings.seed = settings.body.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    setRunning(control);
    element("example").hidden = true;
    if (settings.isChat) keepTurn();
    showError("");
    showState("Writing…");
    warning.textContent = "";
    if (turns.hasChildNodes()) text.scrollIntoView({ block: "nearest" });
    else if (heading.getBoundingClientRect().top > innerHeight / 2) heading.scrollIntoView();
    speaker.start();
    const shown = new ShownText(settings);
    let trouble = "";
    try {
      const answer = await send(settings, control.signal), warned = answer.headers.get("X-Antislop-Warning");
      if (warned) warning.textContent = toSentence(warned);
      trouble = answer.ok ? await follow(answer.body, shown) : await refuse(answer);
    } catch (problem) {
      if (!control.signal.aborted) trouble = NO_ANSWER;
    }
    shown.sort();
    if (settings.isChat) keepMessage(settings, shown);
    const fault = shown.length ? "The text is not complete." : "Nothing was written.";
    const end = control.signal.aborted ? `Stopped. Seed ${settings.seed}.` : trouble ? fault : shown.describe();
    showError(trouble);
    showState(end);
    speaker.end(end);
    setRunning(null);
  };
  const showMode = () => {
    const chosen = form.elements.mode.value, other = chosen === "chat" ? "completion" : "chat";
    if (prompt.value === EXAMPLES[other]) prompt.value = EXAMPLES[chosen];
    element("prompt-label").textContent = chosen === "chat" ? "Message" : "Prompt";
    heading.textContent = chosen === "chat" ? "The chat" : "The text";
    startAnew();
  };
  const describeModel = async () => {
    const answer = await fetch("v1/model", { headers: headers() }).catch(() => null);
    if (!answer) { showError(NO_ANSWER); return; }
    if (!answer.ok) { showError(await refuse(answer)); return; }
    const { id, parameters, antislop } = await answer.json(), length = parameters.max_seq_len;
    showError("");
    const context = Number.isSafeInteger(length) ? `, ${count(length, "token")} of prompt and text at most` : "";
    element("model").textContent = `Model: ${id}${context}${antislop.toy ? ". A toy model: its stories make little sense." : ""}`;
    const named = Object.entries(antislop.lists), choices = [
      [`the server’s own, ${count(antislop.bans, "ban")}`, {}],
      ...named.map(([name, size]) => [`${name}, ${count(size, "ban")}`, { ban_list: name }]),
      ["none", { use_global_bans: false }],
    ];
    lists = choices.map(([, fields]) => fields);
    list.replaceChildren(...choices.map(([label]) => new Option(label)));
    list.parentElement.hidden = !antislop.bans && !named.length;
    if (mode.hidden && parameters.prompt_template_content) {
      mode.hidden = false;
      form.elements.mode.value = "chat";
      showMode();
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) writeText();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.requestSubmit();
  });
  const stopText = () => running?.abort();
  stop.addEventListener("click", stopText);
  anew.addEventListener("click", () => { if (!running) { startAnew(); prompt.focus(); } });
  element("copy").addEventListener("click", copyCommand);
  mode.addEventListener("change", showMode);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stopText(); });
  key.addEventListener("change", describeModel);
  describeModel();
})();
