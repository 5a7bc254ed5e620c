"use strict";
// The tables are complete without this: it colours the heads, draws the maps, and says what is under the pointer or the focus.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const made = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text ?? "", className: name ?? "" });
const pick = (from, one) => { for (const each of from) each.classList.toggle("on", each === one); };

// What is under the pointer or the focus.
const tip = find("tip");
function tell(element) {
  tip.textContent = element.dataset.tip;
  tip.hidden = false;
  const at = element.getBoundingClientRect(), above = at.top > tip.offsetHeight + 12;
  tip.style.left = `${Math.max(8, Math.min(at.left + at.width / 2 - tip.offsetWidth / 2, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above ? at.top - tip.offsetHeight - 6 : at.bottom + 6}px`;
}
for (const element of document.querySelectorAll("[data-grid] [title]")) {
  element.dataset.tip = element.title;
  element.setAttribute("aria-label", element.title);
  element.removeAttribute("title");
}
for (const grid of document.querySelectorAll("[data-grid]")) {
  const over = (event) => { const element = event.target.closest("[data-tip]"); if (element) tell(element); else tip.hidden = true; };
  grid.addEventListener("pointerover", over);
  grid.addEventListener("focusin", over);
  for (const name of ["pointerleave", "focusout"]) grid.addEventListener(name, () => { tip.hidden = true; });
  rove(grid, () => [...grid.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.querySelector("[data-tip]") ?? (cell.dataset.tip && cell))
    .filter((element, i) => i > 0)));
}
addEventListener("scroll", () => { tip.hidden = true; }, { capture: true, passive: true });

// One stop of the tab key; arrows go from cell to cell.
function rove(grid, lines) {
  const first = () => lines().flat().find(Boolean);
  const stop = (element) => { for (const each of grid.querySelectorAll('[tabindex="0"]')) each.tabIndex = -1; if (element) element.tabIndex = 0; };
  for (const each of lines().flat()) if (each) each.tabIndex = -1;
  stop(first());
  if (grid.dataset.roves) return;
  grid.dataset.roves = "true";
  grid.addEventListener("focusin", (event) => { if (event.target.tabIndex === -1 && event.target !== grid) stop(event.target); });
  grid.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    const rows = lines();
    let y = rows.findIndex((row) => row.includes(document.activeElement));
    if (y < 0) return;
    event.preventDefault();
    let x = rows[y].indexOf(document.activeElement);
    do { y += down; x += right; } while (rows[y] && x >= 0 && x < rows[y].length && !rows[y][x]);
    rows[y]?.[x]?.focus();
  });
}

// Where heads look.
const cells = [...document.querySelectorAll("[data-head]")];
const short = (value, digits) => value === null ? "–" : (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits).replace("-", "−");
function colour(name) {
  const i = data.measures.findIndex((each) => each.name === name), measure = data.measures[i];
  const most = measure.share ? 1 : Math.max(0, ...data.heads.map((head) => Math.abs(head[i] ?? 0)));
  const digits = most >= 100 ? 0 : most >= 10 ? 1 : most >= 1 || !most ? 2 : Math.min(9, Math.ceil(-Math.log10(most)) + 1);
  find("words").textContent = measure.words;
  find("least").textContent = "0";
  find("most").textContent = measure.share ? "1" : short(most, digits);
  for (const cell of cells) {
    const value = data.heads[cell.dataset.head][i];
    cell.textContent = short(value, digits);
    cell.classList.toggle("none", value === null);
    cell.classList.toggle("below", value < 0);
    cell.style.setProperty("--v", most ? Math.min(1, Math.abs(value ?? 0) / most).toFixed(3) : "0");
  }
}
for (const radio of document.querySelectorAll("[name=measure]")) {
  radio.closest("fieldset").hidden = false;
  radio.addEventListener("change", () => colour(radio.value));
}
if (data.measures.length) colour(data.measures[0].name);

// One text, token by token. A map's bytes are 255 times the root of the weight.
const maps = data.maps, thumbs = [], owners = new Map();
const widest = Math.max(1, ...maps.map((map) => map.shape[0])), crowded = widest > 12;
const thumb = Math.max(24, Math.min(72, Math.floor((crowded ? 930 : 370) / widest) - 4)); // pixels
let queries, keys, now, chosen; // tokens, the map and head that are drawn, the query that is read
function decode(map) {
  const text = atob(map.weights);
  map.bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  map.weights = null;
}
function draw(canvas, map, head, paint) {
  const [, high, wide] = map.shape, context = canvas.getContext("2d");
  if (!high || !wide) return;
  [canvas.width, canvas.height] = [wide, high];
  canvas.classList.toggle("shrunk", Math.max(wide, high) > thumb);
  const image = context.createImageData(wide, high);
  for (let i = 0, from = head * high * wide; i < high * wide; i++) image.data.set([...paint, map.bytes[from + i]], 4 * i);
  context.putImageData(image, 0, 0);
}
const paint = () => getComputedStyle(document.documentElement).getPropertyValue("--full").match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16));

function line(place, tokens, name) {
  place.replaceChildren(...tokens.flatMap((token) => [made("b", token), ...(token.endsWith("⏎") ? ["\n"] : [])]));
  if (name) place.dataset.name = name; else delete place.dataset.name;
  return [...place.querySelectorAll("b")];
}
function choose(map, head, query) {
  const [count, high, wide] = map.shape, field = document.querySelector(".field"), canvas = field.querySelector("canvas");
  if (now?.map !== map) {
    const same = map.queries.length === map.keys.length && map.queries.every((token, i) => token === map.keys[i]);
    queries = line(find("queries"), map.queries, same ? "" : "queries");
    keys = same ? queries : line(find("keys"), map.keys, "keys");
    if (same) find("keys").replaceChildren();
    queries.forEach((token, i) => { for (const name of ["pointerenter", "focus"]) token.addEventListener(name, () => read(i)); });
    rove(find("queries"), () => [[...find("queries").querySelectorAll("b")]]);
    const room = Math.min(crowded ? 640 : 500, document.querySelector("main").clientWidth - 130);
    const cell = Math.max(3, Math.min(26, Math.floor(room / Math.max(high, wide, 1)))), every = Math.ceil(9 / cell);
    find("map").style.setProperty("--cell", `${cell}px`);
    find("map").style.setProperty("--label", `${Math.max(9, Math.min(12, cell - 2))}px`);
    for (const [name, tokens] of [["across", map.keys], ["down", map.queries]]) {
      document.querySelector(`.${name}`).replaceChildren(...tokens.map((token, i) => made("bdi", i % every ? "" : token)));
    }
    [canvas.style.width, canvas.style.height] = [`${cell * wide}px`, `${cell * high}px`];
  }
  now = { map, head };
  find("chosen").textContent = `${map.group}, layer ${map.layer}, head ${head}`;
  draw(canvas, map, head, paint());
  pick(thumbs.map((each) => each.button), thumbs.find((each) => each.map === map && each.head === head)?.button);
  pick(cells, cells.find((cell) => cell.dataset.head === String(map.figures[head])));
  read(Math.min(query ?? high - 1, high - 1));
}
function read(query, key) {
  const { map, head } = now, [, high, wide] = map.shape, from = (head * high + query) * wide;
  if (query < 0) return;
  chosen = query;
  const weight = (i) => (map.bytes[from + i] / 255) ** 2;
  keys.forEach((token, i) => token.style.setProperty("--v", (map.bytes[from + i] / 255).toFixed(3)));
  pick(queries, queries[query]);
  const box = find("queries"); // a long text scrolls in its box
  if (!box.matches(":hover, :focus-within")) box.scrollTop = queries[query].offsetTop - box.offsetTop - box.clientHeight / 2;
  pick(document.querySelectorAll(".down bdi"), document.querySelectorAll(".down bdi")[query]);
  pick(document.querySelectorAll(".across bdi"), document.querySelectorAll(".across bdi")[key ?? -1]);
  document.querySelector(".line").style.setProperty("--row", query);
  const best = key === undefined ? [...map.keys.keys()].sort((a, b) => weight(b) - weight(a)).slice(0, 5).filter((i) => weight(i) >= 0.005) : [key];
  find("said").textContent = `${map.queries[query]} (${query}) looks at ${best.map((i) => `${map.keys[i]} (${i}) ${weight(i).toFixed(2)}`).join(", ") || "nothing"}`;
}

function begin() {
  const table = made("table");
  find("thumbs").style.setProperty("--thumb", `${thumb}px`);
  let group;
  for (const map of maps) {
    decode(map);
    if (map.group !== group) {
      const row = table.insertRow(), name = made("th", group = map.group);
      name.colSpan = widest + 1; row.className = "group"; row.append(name);
    }
    const row = table.insertRow();
    row.append(made("th", map.layer));
    for (let head = 0; head < map.shape[0]; head++) {
      const button = made("button"), canvas = made("canvas");
      button.type = "button";
      button.setAttribute("aria-label", `${map.group}, layer ${map.layer}, head ${head}`);
      button.addEventListener("click", () => choose(map, head, chosen));
      button.append(canvas);
      row.insertCell().append(button);
      thumbs.push({ map, head, canvas, button });
      if (map.figures[head] !== null) owners.set(String(map.figures[head]), { map, head });
    }
  }
  find("thumbs").append(table);
  rove(table, () => [...table.rows].map((row) => [...row.cells].map((cell) => cell.querySelector("button")).slice(1)));
  for (const cell of cells) {
    const owner = owners.get(cell.dataset.head);
    if (!owner) continue;
    cell.classList.add("opens");
    cell.addEventListener("click", () => { choose(owner.map, owner.head, chosen); find("maps").scrollIntoView({ behavior: "smooth" }); });
  }
  const field = document.querySelector(".field");
  field.addEventListener("pointermove", (event) => {
    const box = field.querySelector("canvas").getBoundingClientRect(), [, high, wide] = now.map.shape;
    const at = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    read(at((event.clientY - box.top) / box.height, high), at((event.clientX - box.left) / box.width, wide));
  });
  const shade = () => { for (const each of thumbs) draw(each.canvas, each.map, each.head, paint()); choose(now?.map ?? start.map, now?.head ?? start.head, chosen); };
  const ranked = data.measures[0]?.name === "importance" ? [...owners.keys()].sort((a, b) => (data.heads[b][0] ?? -1) - (data.heads[a][0] ?? -1)) : [...owners.keys()];
  const start = owners.get(ranked[0]) ?? { map: maps[0], head: 0 };
  shade();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", shade);
}
if (maps.length) begin();
