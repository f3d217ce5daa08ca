"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const aside = document.getElementById("details"), panel = document.getElementById("panel");
  const close = document.getElementById("close"), status = document.getElementById("status"), hint = [...panel.childNodes];
  const rows = [...document.querySelectorAll(".written")].map((text, row) => {
    const tokens = [...text.querySelectorAll(".t")];
    tokens.forEach((token, n) => {
      token.row = row; token.n = n; token.tabIndex = n ? -1 : 0;
      if (/^\n+$/.test(token.textContent)) token.dataset.break = "";
    });
    const section = text.closest("section"), draws = data.rows[row].draws;
    const kept = tokens.filter((token, n) => !draws[n][2]);
    const before = [...section.querySelectorAll(".p")];
    return { section, tokens, kept, sources: [...before, ...kept], now: section.querySelector(".now"), ...data.rows[row] };
  });
  let shown = null, selected = null, shaded = [];

  document.documentElement.classList.add("scripted");
  for (const attempt of document.querySelectorAll("del[title]")) attempt.removeAttribute("title");

  const make = (name, className, ...children) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };
  const percent = (share) => {
    if (share === null) return "unknown";
    const value = 100 * share;
    if (value > 0 && value < .01) return "<\u00a00.01\u00a0%";
    return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}\u00a0%`;
  };
  const list = (pairs) => {
    const facts = make("dl");
    for (const [name, value] of pairs) facts.append(make("dt", "", name), make("dd", "", String(value)));
    return facts;
  };
  const tabulate = (title, headers, lines) => {
    const table = make("table"), head = make("tr"), body = make("tbody");
    for (const header of headers) { const cell = make("th", "", header); cell.scope = "col"; head.append(cell); }
    for (const [name, width, value, isChosen] of lines) {
      const cell = make("th", "", name), bar = make("span"), line = make("tr", isChosen ? "chosen" : "");
      cell.scope = "row";
      bar.style.width = `${100 * width}%`;
      if (isChosen) cell.append(make("span", "hidden", " (drawn)"));
      line.append(cell, make("td", "bar", bar), make("td", "n", value));
      body.append(line);
    }
    const headings = make("thead", "hidden", head);
    table.append(make("caption", "", title), headings, body);
    return table;
  };
  const unfold = (flat) => flat.flatMap((value, i) => i % 2 ? [] : [[value, flat[i + 1]]]);
  const compare = (title, flat, drawn) => {
    const pairs = unfold(flat), top = Math.max(...pairs.map(([, share]) => share));
    const lines = pairs.map(([token, share]) => [data.tokens[token], share / top, percent(share), token === drawn]);
    return tabulate(title, ["token", "", "share"], lines);
  };
  const name = (ban) => ban < 0 ? "a controller, or of its batch" : `the ban “${data.bans[ban]}”`;

  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const strike = (row, number) => {
    const tokens = row.tokens.filter((token, n) => row.draws[n][2] === number);
    return make("del", "", ...tokens.flatMap((token) => [...token.cloneNode(true).childNodes]));
  };

  const describeRejected = (row, index) => {
    const attempts = row.attempts.map((attempt, i) => [i + 1, ...attempt]).filter(([, , place, , isOnPath]) => place === index && isOnPath);
    if (!attempts.length) return [];
    const items = attempts.map(([number, ban, , , , , , step]) => {
      const [, , , probability, share] = row.draws[step];
      const item = make("li", "", strike(row, number), ` because of ${name(ban)}`);
      if (share !== undefined) item.append(` (its first token had ${percent(probability)}, ${percent(share)} of what bans had left)`);
      return item;
    });
    return [make("h3", "", "Rejected in its place"), make("ul", "", ...items)];
  };
  const describeLetThrough = (row, index) => row.let_through
    .filter(([, start, end]) => start <= index && index <= end)
    .map(([ban, , , isConceded]) => make("p", "", `Stays in the text with ${name(ban)}: `,
      isConceded ? "conceded, since every alternative was ruled out." : "admitted, as its weight allows."));
  const describeAttempt = (row, number) => {
    const [ban, , length, isOnPath] = row.attempts[number - 1];
    const parts = [make("p", "", "Withdrawn: ", strike(row, number), `, ${count(length, "token")}, because of ${name(ban)}.`)];
    if (!isOnPath) parts.push(make("p", "", "The text before it was itself withdrawn later."));
    return parts;
  };
  const compareInstead = (row, number) => {
    const alternatives = row.attempts[number - 1][5];
    return alternatives.length ? [compare("The likeliest tokens without the ban", alternatives.slice(0, 20))] : [];
  };
  const describeRelevance = (row, values) => {
    const top = values.map((value, i) => [Math.abs(value), i]).sort((a, b) => b[0] - a[0]).slice(0, 5);
    const lines = top.map(([size, i]) => [text(row, i), size / (top[0][0] || 1), values[i].toPrecision(3)]);
    const scale = make("p", "scale", "negative", make("span"), "positive");
    return [make("h3", "", "Relevance of earlier tokens"), scale, tabulate("The most relevant", ["token", "", "relevance"], lines)];
  };
  const text = (row, i) => i < row.prompt
    ? row.sources[i].textContent.replaceAll(" ", "␣").replaceAll("\n", "↵") || row.sources[i].dataset.sign
    : data.tokens[row.draws[row.kept[i - row.prompt].n][0]];

  const shade = (row, values) => {
    for (const element of shaded) { element.classList.remove("more", "less"); element.style.removeProperty("--amount"); }
    shaded = [];
    if (!values) return;
    const top = Math.max(...values.map(Math.abs)) || 1;
    values.forEach((value, i) => {
      const element = row.sources[i], amount = .6 * Math.abs(value) / top;
      if (!element || amount < .05) return;
      element.classList.add(value > 0 ? "more" : "less");
      element.style.setProperty("--amount", amount.toFixed(3));
      shaded.push(element);
    });
  };
  const show = (token) => {
    if (token === shown) return;
    if (shown) { shown.classList.remove("on"); rows[shown.row].now?.classList.remove("on"); }
    shown = token;
    if (!token) { panel.replaceChildren(...hint); aside.classList.remove("open"); close.hidden = true; shade(null, null); return; }
    const row = rows[token.row], [id, index, attempt, probability, share, rank, alternatives] = row.draws[token.n];
    const facts = [
      ["place in the text", index ? `after ${count(index, "token")}` : "at its start"],
      ["drawn", token.n ? `after ${count(token.n, "draw")}` : "first"],
      ["token id", data.ids[id]],
    ];
    if (share !== undefined) facts.push(["probability", percent(probability)], ["of what bans had left", percent(share)], ["rank", rank === 1 ? "likeliest" : `${rank} in order of probability`]);
    const values = attempt ? undefined : row.relevance[index];
    panel.replaceChildren(
      make("div", "token", data.tokens[id]),
      ...(attempt ? describeAttempt(row, attempt) : describeLetThrough(row, index)),
      list(facts),
      ...(attempt && share === undefined ? compareInstead(row, attempt) : []),
      ...(values ? describeRelevance(row, values) : []),
      ...(attempt ? [] : describeRejected(row, index)),
      ...(alternatives?.length ? [compare("The likeliest tokens", alternatives, id)] : []),
    );
    aside.classList.add("open");
    close.hidden = false;
    token.classList.add("on");
    row.now?.classList.add("on");
    for (const end of ["x1", "x2"]) row.now?.setAttribute(end, token.n + 1);
    shade(row, values);
  };
  const select = (token) => {
    for (const other of rows[token.row].tokens) if (other.tabIndex === 0) other.tabIndex = -1;
    token.tabIndex = 0;
    selected = token;
    show(token);
    const [id, , attempt, probability, , rank] = rows[token.row].draws[token.n];
    const chance = probability === undefined ? "" : `, probability ${percent(probability)}, rank ${rank}`;
    status.textContent = `${attempt ? "withdrawn: " : ""}${data.tokens[id]}${chance}`;
  };
  const isShown = (token) => token.offsetParent !== null || token.getClientRects().length > 0;
  const step = (token, by) => {
    const tokens = rows[token.row].tokens;
    let n = token.n + by;
    while (tokens[n] && !isShown(tokens[n])) n += by;
    return tokens[n];
  };
  const stepLine = (token, by) => {
    const start = token.getBoundingClientRect();
    let best = null, distance = Infinity, line = null;
    for (let other = step(token, by); other; other = step(other, by)) {
      const box = other.getBoundingClientRect();
      if (Math.abs(box.top - start.top) < start.height / 2) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > box.height / 2) break;
      if (Math.abs(box.left - start.left) < distance) { best = other; distance = Math.abs(box.left - start.left); }
    }
    return best;
  };
  const moves = {
    ArrowRight: (token) => step(token, 1), ArrowLeft: (token) => step(token, -1),
    ArrowDown: (token) => stepLine(token, 1), ArrowUp: (token) => stepLine(token, -1),
    Home: (token) => rows[token.row].tokens.find(isShown), End: (token) => rows[token.row].tokens.findLast(isShown),
  };
  const tokenOf = (event) => event.target.closest?.(".t");

  for (const row of rows) {
    const text = row.section.querySelector(".written");
    text.addEventListener("pointerover", (event) => { const token = tokenOf(event); if (token && event.pointerType === "mouse") show(token); });
    text.addEventListener("pointerleave", () => { if (selected) show(selected); });
    text.addEventListener("click", (event) => { const token = tokenOf(event); if (token) { token.focus(); select(token); } });
    text.addEventListener("focusin", (event) => { const token = tokenOf(event); if (token) select(token); });
    text.addEventListener("keydown", (event) => {
      const token = tokenOf(event), move = moves[event.key];
      if (!token || !move || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      move(token)?.focus();
    });
    const asked = Object.keys(row.relevance).map(Number);
    if (!asked.length) continue;
    const jump = make("div", "jump fine", "Relevance was computed for the boxed tokens");
    for (const index of asked) {
      const token = row.kept[index], button = make("button", "", `${index} ${data.tokens[row.draws[token.n][0]]}`);
      token.classList.add("asked");
      button.type = "button";
      button.addEventListener("click", () => select(token));
      jump.append(button);
    }
    row.section.querySelector(".text").after(jump);
  }
  const leave = () => { selected = null; show(null); };
  close.addEventListener("click", leave);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") leave(); });
  const follow = () => {
    const [, row = 0, index] = /^#(?:text-(\d+)-)?token-(\d+)$/.exec(location.hash) ?? [];
    const token = rows[row]?.kept[index];
    if (token) { token.scrollIntoView({ block: "nearest" }); select(token); }
    return Boolean(token);
  };
  window.addEventListener("hashchange", follow);
  const first = rows.find((row) => Object.keys(row.relevance).length);
  if (!follow() && first) select(first.kept[Number(Object.keys(first.relevance).at(-1))]);
})();
