"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const find = (id) => document.getElementById(id);
const made = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text ?? "", className: name ?? "" });

// What tokens say. A token: { text, logprob, tops: [{ text, logprob }], at: the character it begins at }.
const WHOLE = 12; // bits from which a token is as dark as can be
const share = (logprob) => Math.exp(logprob);
const percent = (logprob) => { const p = 100 * share(logprob); return p >= 10 ? `${p.toFixed(0)} %` : p >= 0.1 ? `${p.toFixed(1)} %` : "< 0.1 %"; };
const spelled = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "·") || "(nothing)";

// The tokens of a piece of a completion, which says where each begins.
function completed(said) {
  return (said?.tokens ?? []).map((text, i) => ({
    text, logprob: said.token_logprobs[i], at: said.text_offset[i],
    tops: Object.entries(said.top_logprobs[i] ?? {}).map(([text, logprob]) => ({ text, logprob })),
  }));
}

// The tokens of a piece of a chat, which does not: each is looked for behind the one before. Of one that is not there nothing is shown.
function chatted(said, content, from) {
  const found = [];
  for (const each of said?.content ?? []) {
    const at = each.token ? content.indexOf(each.token, from) : -1;
    if (at < 0 || at > from + 2) continue;
    found.push({ text: each.token, logprob: each.logprob, at: from, tops: each.top_logprobs.map(({ token, logprob }) => ({ text: token, logprob })) });
    from = at + each.token.length;
  }
  return [found, from];
}

// A text that grows, drawn as its tokens where they are known.
class Written {
  constructor(element, take) {
    Object.assign(this, { element, take, given: "", text: "", tokens: [], drawn: [], end: 0 });
    element.classList.toggle("choose", Boolean(take));
    element.replaceChildren();
  }
  get whole() { return this.given + this.text; }
  begin(given) {
    this.given = given;
    this.element.replaceChildren(...(given ? [made("span", given, "given")] : []));
  }
  add(text, tokens) {
    this.text += text;
    this.tokens.push(...tokens);
    this.draw();
  }
  // What follows the last token that was drawn may have become longer, so that one is drawn anew.
  draw() {
    const points = Array.from(this.text), n = this.drawn.length;
    if (n) this.drawn.pop().remove();
    if (!this.tokens.length) { if (this.text) this.plain(this.text); return; }
    for (let i = Math.max(0, n - 1); i < this.tokens.length; i++) {
      const token = this.tokens[i], element = made("b", points.slice(i && token.at, this.tokens[i + 1]?.at).join(""));
      element.style.setProperty("--surprise", token.logprob === null ? 0 : Math.min(1, -token.logprob / Math.LN2 / WHOLE));
      element.tabIndex = -1;
      element.others = () => others(element, token, this.take && ((text) => this.take(this, i, text)));
      this.element.append(element);
      this.drawn.push(element);
    }
    if (this.drawn.length) this.drawn[0].tabIndex = 0;
  }
  plain(text) {
    const element = made("b", text);
    element.style.setProperty("--surprise", 0);
    this.element.append(element);
    this.drawn.push(element);
  }
  // Keep what stands before token i.
  cut(i) {
    this.text = Array.from(this.text).slice(0, this.tokens[i].at).join("");
    for (const each of this.drawn.splice(i)) each.remove();
    this.tokens.length = i;
  }
}

// What else could have stood there, beside the token.
const panel = find("others");
let shown = null;
function others(element, token, take) {
  hide();
  if (token.logprob === null || !token.tops.length) return;
  const tops = token.tops.some((each) => each.text === token.text) ? token.tops : [...token.tops, token];
  panel.replaceChildren(...[...tops].sort((a, b) => b.logprob - a.logprob).map((each) => {
    const can = take && !each.text.startsWith("bytes:") && !facts.ends.includes(each.text), is = each.text === token.text;
    const row = made(can ? "button" : "div", "", is ? "is" : "");
    row.style.setProperty("--share", share(each.logprob));
    row.append(made("bdi", spelled(each.text)), made("span", percent(each.logprob)));
    if (can) { row.disabled = is; row.onclick = () => { hide(); take(each.text); }; }
    return row;
  }));
  panel.hidden = false;
  (shown = element).classList.add("on");
  const at = element.getBoundingClientRect(), below = at.bottom + panel.offsetHeight + 8 < innerHeight || at.top < panel.offsetHeight + 8;
  panel.style.left = `${scrollX + Math.max(8, Math.min(at.left, document.documentElement.clientWidth - panel.offsetWidth - 8))}px`;
  panel.style.top = `${scrollY + (below ? at.bottom + 4 : at.top - panel.offsetHeight - 4)}px`;
}
function hide() {
  panel.hidden = true;
  shown?.classList.remove("on");
  shown = null;
}
document.addEventListener("pointerover", (event) => { if (event.target.others && !panel.contains(document.activeElement)) event.target.others(); });
document.addEventListener("focusin", (event) => { if (event.target.others) event.target.others(); else if (!panel.contains(event.target)) hide(); });
document.addEventListener("pointerdown", (event) => { if (!event.target.others && !panel.contains(event.target)) hide(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown) { const back = shown; hide(); back.focus(); hide(); return; }
  if (!event.target.others) return;
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (step && event.target[step]?.others) { event.preventDefault(); event.target[step].focus(); }
  if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); panel.querySelector("button:not(:disabled)")?.focus(); }
});

// Asking. One answer grows at a time.
let asking = null;
function settings() {
  const given = { max_tokens: facts.new_tokens };
  for (const each of find("settings")?.elements ?? []) if (each.value !== "") given[each.name] = Number(each.value);
  return given;
}
async function post(route, body, signal) {
  const key = find("key").querySelector("input").value;
  const answer = await fetch(`v1/${route}`, {
    method: "POST", signal, body: JSON.stringify({ model: facts.model, ...body }),
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
  });
  if (answer.ok) return answer;
  if (answer.status === 401) find("key").hidden = false;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error?.message ?? `the server answered with status ${answer.status}`);
}
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server ended before the answer did");
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const piece = JSON.parse(data);
      if (piece.error) throw new Error(piece.error.message);
      yield piece.choices[0];
    }
  }
}
// Do what is asked while the buttons say so, and tell what goes wrong.
async function busy(work) {
  if (asking) return;
  asking = new AbortController();
  const buttons = [...document.querySelectorAll("form button:not(.stop)")];
  for (const each of buttons) each.disabled = true;
  for (const each of document.querySelectorAll(".stop")) each.hidden = false;
  find("wrong").hidden = true;
  hide();
  try {
    await work(asking.signal);
  } catch (error) {
    if (error.name !== "AbortError") Object.assign(find("wrong"), { textContent: error.message, hidden: false });
  } finally {
    asking = null;
    for (const each of buttons) each.disabled = false;
    for (const each of document.querySelectorAll(".stop")) each.hidden = true;
  }
}
for (const each of document.querySelectorAll(".stop")) each.onclick = () => asking?.abort();
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
function sends(area, form) {
  area.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); } });
}

// Conversations.
if (facts.ways.includes("chat")) {
  const thread = find("thread"), messages = [];
  const turn = (who, text) => {
    const element = made("div", "", "turn"), said = made("div", text, "said");
    element.append(made("h2", who), said);
    thread.append(element);
    return said;
  };
  const offer = () => { for (const id of ["again", "anew"]) find(id).hidden = !messages.length; };
  const drop = (role) => { if (messages.at(-1)?.role === role) { messages.pop(); thread.lastChild.remove(); } };
  const answer = () => busy(async (signal) => {
    const system = find("system").value.trim(), written = new Written(turn(facts.model, ""));
    const asked = [...(system ? [{ role: "system", content: system }] : []), ...messages];
    let from = 0;
    try {
      const reply = await post("chat/completions", { messages: asked, stream: true, logprobs: true, top_logprobs: 5, ...settings() }, signal);
      for await (const { delta, logprobs } of events(reply)) {
        const text = delta.content ?? "", before = Array.from(written.text).length;
        const [tokens, end] = chatted(logprobs, written.text + text, from);
        from = end;
        const points = (at) => Array.from((written.text + text).slice(0, at)).length;
        written.add(text, tokens.map((each) => ({ ...each, at: points(each.at) })));
        if (before === 0 || innerHeight + scrollY > document.body.scrollHeight - 160) find("said").scrollIntoView({ block: "nearest" });
      }
    } finally {
      if (written.text) messages.push({ role: "assistant", content: written.text });
      else thread.lastChild.remove();
      offer();
    }
  });
  find("ask").addEventListener("submit", () => {
    const text = find("said").value.trim();
    if (!text || asking) return;
    drop("user"); // which was not answered
    messages.push({ role: "user", content: text });
    turn("You", text);
    find("said").value = "";
    answer();
  });
  find("again").onclick = () => { if (!asking) { drop("assistant"); answer(); } };
  find("anew").onclick = () => { messages.length = 0; thread.replaceChildren(); offer(); find("said").focus(); };
  sends(find("said"), find("ask"));
}

// Texts that go on, or are answered.
if (facts.ways.includes("text") || facts.ways.includes("answer")) {
  const prompt = find("prompt"), answers = facts.ways.includes("answer"), figures = find("figures");
  let written = null;
  const grow = (signal) => post("completions", { prompt: answers ? prompt.value : written.whole, stream: true, logprobs: 5, ...settings() }, signal)
    .then(async (reply) => {
      const before = Array.from(written.text).length;
      for await (const { text, logprobs } of events(reply)) written.add(text, completed(logprobs).map((each) => ({ ...each, at: each.at + before })));
    });
  const take = (from, i, text) => busy((signal) => {
    const { at, tops, logprob, text: was } = from.tokens[i];
    from.cut(i);
    const chosen = tops.find((each) => each.text === text);
    from.add(text, [{ at, text, logprob: chosen.logprob, tops: tops.some((each) => each.text === was) ? tops : [...tops, { text: was, logprob }] }]);
    figures.hidden = true;
    return grow(signal);
  });
  find("write").addEventListener("submit", () => busy((signal) => {
    figures.hidden = true;
    if (answers || !written || !written.whole.startsWith(prompt.value) || !prompt.value) {
      written = new Written(find("written"), answers ? null : take);
      if (!answers) written.begin(prompt.value);
    }
    return grow(signal);
  }));
  if (find("read")) find("read").onclick = () => busy(async (signal) => {
    const reply = await post("completions", { prompt: prompt.value, echo: true, max_tokens: 0, logprobs: 5 }, signal);
    const { text, logprobs } = (await reply.json()).choices[0], tokens = completed(logprobs);
    written = new Written(find("written"), take);
    written.add(text, tokens);
    const known = tokens.filter((each) => each.logprob !== null), nats = -known.reduce((sum, each) => sum + each.logprob, 0);
    const nbytes = new TextEncoder().encode(text).length;
    figures.textContent = known.length ? `${tokens.length} tokens: ${(nats / known.length).toFixed(3)} nats a token, ${(nats / Math.LN2 / nbytes).toFixed(3)} bits a byte` : "Nothing stands before its one token.";
    figures.hidden = false;
  });
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); find("write").requestSubmit(); } });
}

// Texts that are told apart.
if (facts.ways.includes("vectors")) {
  find("compare").addEventListener("submit", () => busy(async (signal) => {
    const texts = find("texts").value.split("\n").map((each) => each.trim()).filter(Boolean);
    const reply = await post("embeddings", { input: texts }, signal);
    const vectors = (await reply.json()).data.map(({ embedding }) => { const length = Math.hypot(...embedding) || 1; return embedding.map((x) => x / length); });
    const table = made("table");
    vectors.forEach((one, i) => {
      const row = table.insertRow();
      row.append(Object.assign(made("th", texts[i]), { title: texts[i] }));
      for (const two of vectors.slice(0, i)) {
        const near = one.reduce((sum, x, at) => sum + x * two[at], 0), cell = row.insertCell();
        cell.textContent = near.toFixed(3).replace("-", "−");
        cell.style.setProperty("--share", Math.max(0, near));
      }
    });
    find("alike").replaceChildren(table);
  }));
}

// One way at a time.
const ways = [...document.querySelectorAll("[data-way]")];
function show(way) {
  for (const each of ways) {
    each.setAttribute("aria-selected", String(each.dataset.way === way));
    find(each.dataset.way).hidden = each.dataset.way !== way;
  }
  hide();
}
for (const each of ways) each.onclick = () => show(each.dataset.way);
if (ways.length) show(facts.ways[0]);
document.querySelector("section:not([hidden]) form textarea")?.focus();
