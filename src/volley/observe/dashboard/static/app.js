// SPDX-License-Identifier: Apache-2.0
// The pages. What is shown is in the part of the address after #, so that links and the browser's buttons work.

import { bytes, count, element, flow, planGraph, seconds, timeline } from "./draw.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const marked = new Set();
let page = { close() {}, changed() {} };

async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.status === 404 ? "There is no such query in the history." : `The dashboard answered ${answer.status}.`);
  return answer.json();
}

const badge = (word) => element("span", { class: `badge ${word.replaceAll(" ", "-")}` }, word);
const reasonLink = (code) => element("a", { href: `#/reasons/${encodeURIComponent(code)}` }, code);
const queryLink = (id) => element("a", { href: `#/query/${encodeURIComponent(id)}` }, id);
const time = (at) => new Date(at * 1000).toLocaleString();
const number = (text) => element("td", { class: "number" }, text);

function table(heads, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, heads.map(([head, kind]) => element("th", { class: kind, scope: "col" }, head)))),
    element("tbody", {}, rows));
}

// ------------------------------------------------------------------------------------------------ the list

async function listPage(root) {
  const search = element("input", { type: "search", placeholder: "Search: description, place, reason", "aria-label": "Search" });
  const engine = choice("Engine", ["native", "mixed", "spark"]);
  const outcome = choice("Outcome", ["answered", "failed", "cancelled", "running"]);
  const total = element("span", { class: "dim" });
  const body = element("tbody");
  const more = element("button", { type: "button" }, "Load more");
  const compare = element("button", { type: "button", disabled: true }, "Compare two");
  const rows = new Map();
  let here = -1, oldest = null;

  const row = (query) => {
    const share = query.bytes_to_read ? query.bytes_read / query.bytes_to_read : null;
    const going = query.outcome === "running" ? element("progress", { max: 1, value: share, "aria-label": "progress" }) : null;
    const why = [...new Set([...(query.error ? [query.error.code] : []), ...query.reasons.map((reason) => reason.reason)])];
    const mark = element("input", { type: "checkbox", "aria-label": `mark ${query.query}`, on: { change: () => toggle(query.query) } });
    mark.checked = marked.has(query.query);
    return element("tr", { "data-query": query.query, class: marked.has(query.query) ? "marked" : null },
      element("td", {}, mark), element("td", {}, queryLink(query.query)), element("td", {}, time(query.started)),
      element("td", {}, query.action, query.description ? element("div", {}, query.description) : null, element("div", { class: "dim" }, `${query.caller} · ${query.application_name}`)),
      element("td", {}, badge(query.engine)), element("td", {}, badge(query.outcome), " ", going),
      number(seconds(query.seconds)), number(query.rows === null ? (query.rows_read ? `${count(query.rows_read)} read` : "") : count(query.rows)),
      element("td", {}, why.map((code, place) => [place ? ", " : "", query.reasons.some((reason) => reason.reason === code) ? reasonLink(code) : code])));
  };
  const toggle = (id) => {
    marked.has(id) ? marked.delete(id) : marked.add(id);
    while (marked.size > 2) marked.delete(marked.values().next().value);
    compare.disabled = marked.size !== 2;
    for (const [other, shown] of rows) {
      shown.classList.toggle("marked", marked.has(other));
      shown.querySelector("input").checked = marked.has(other);
    }
  };
  const put = (query, first) => {
    const made = row(query), old = rows.get(query.query);
    rows.set(query.query, made);
    old ? old.replaceWith(made) : first ? body.prepend(made) : body.append(made);
  };
  const load = async (fresh) => {
    if (fresh) { rows.clear(); body.replaceChildren(); oldest = null; here = -1; }
    const asked = new URLSearchParams({ limit: 100, engine: engine.value, outcome: outcome.value, search: search.value });
    if (oldest !== null) asked.set("before", oldest);
    const found = await get(`api/queries?${asked}`);
    for (const query of found.queries) { put(query, false); oldest = query.started; }
    total.textContent = `${count(found.count)} queries kept`;
    more.hidden = found.queries.length < 100;
  };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => load(true).catch(fail), 200); });
  for (const field of [engine, outcome]) field.addEventListener("change", () => load(true).catch(fail));
  more.addEventListener("click", () => load(false).catch(fail));
  compare.addEventListener("click", () => { location.hash = `#/compare/${[...marked].map(encodeURIComponent).join("/")}`; });
  const heads = [["", ""], ["query", ""], ["started", ""], ["action", ""], ["engine", ""], ["outcome", ""], ["time", "number"], ["rows", "number"], ["why", ""]];
  const shown = table(heads, []);
  shown.querySelector("tbody").replaceWith(body);
  root.replaceChildren(element("h1", {}, "Queries"), element("div", { class: "tools" }, search, engine, outcome, compare, total), shown, element("p", {}, more));
  await load(true);
  compare.disabled = marked.size !== 2;
  const move = (step) => {
    const all = [...body.children];
    if (!all.length) return;
    all[here]?.classList.remove("here");
    here = Math.min(all.length - 1, Math.max(0, here + step));
    all[here].classList.add("here");
    all[here].scrollIntoView({ block: "nearest" });
  };
  return {
    close() {},
    changed(query) {
      if ((engine.value && engine.value !== query.engine) || (outcome.value && outcome.value !== query.outcome) || search.value) return;
      put(query, true);
    },
    key(key) {
      if (key === "j") move(1);
      else if (key === "k") move(-1);
      else if (key === "/") search.focus();
      else if (key === "Enter" && body.children[here]) location.hash = `#/query/${encodeURIComponent(body.children[here].dataset.query)}`;
      else if (key === "c" && body.children[here]) toggle(body.children[here].dataset.query);
      else return false;
      return true;
    },
  };
}

function choice(label, words) {
  return element("select", { "aria-label": label }, element("option", { value: "" }, `${label}: all`), words.map((word) => element("option", { value: word }, word)));
}

// ------------------------------------------------------------------------------------------------ one query

async function queryPage(root, id) {
  let timer = 0, at = 0;
  const load = async () => {
    at = Date.now();
    const query = await get(`api/queries/${encodeURIComponent(id)}`);
    const open = new Set([...root.querySelectorAll("details[open]")].map((found) => found.dataset.stage));
    root.replaceChildren(...drawQuery(root, query));
    for (const found of root.querySelectorAll("details")) found.open = open.has(found.dataset.stage);
  };
  await load();
  return {
    close() { clearTimeout(timer); },
    changed(query) {
      if (query.query !== id) return;
      clearTimeout(timer);
      timer = setTimeout(() => load().catch(fail), Math.max(0, 1000 - (Date.now() - at)));
    },
  };
}

function drawQuery(root, query) {
  const card = (head, value) => element("div", { class: "card" }, element("span", { class: "dim" }, head), element("b", {}, value));
  const end = Math.max(query.seconds, ...query.stages.map((stage) => stage.end ?? 0));
  const progress = query.outcome === "running"
    ? element("p", {}, element("progress", { max: 1, value: query.bytes_to_read ? query.bytes_read / query.bytes_to_read : null, "aria-label": "progress" }),
      ` read ${count(query.rows_read)} rows, ${bytes(query.bytes_read)}${query.bytes_to_read ? ` of ${bytes(query.bytes_to_read)}` : ""}`) : null;
  const parts = [
    element("h1", {}, `${query.action} `, badge(query.engine), " ", badge(query.outcome)),
    query.description ? element("p", {}, query.description) : null,
    element("p", { class: "dim" }, `${query.query} · ${query.caller} · ${query.application_name} (${query.application}) on ${query.host}, process ${query.process} · ${time(query.started)}`),
    progress,
    query.error ? element("p", { class: "failed" }, `[${query.error.code}] ${query.error.message}`) : null,
    element("div", { class: "cards" }, card("time", seconds(query.seconds)), card("rows", count(query.rows)), card("native tasks", count(query.native_tasks)),
      card("Spark tasks", count(query.spark_tasks)), card("exchanged", bytes(query.shuffle_bytes)), card("spilled", bytes(query.spilled_bytes))),
    element("h2", {}, "Where the time went"), split(query.times),
  ];
  if (query.reasons.length) {
    parts.push(element("h2", {}, "What was not native, and why"), element("ul", { class: "plain reasons" }, query.reasons.map((reason) =>
      element("li", {}, reasonLink(reason.reason), ` ${reason.what}${reason.detail ? `: ${reason.detail}` : ""}`))));
  }
  if (query.plan.length) parts.push(element("h2", {}, "Spark's plan"), element("div", { class: "scroll", tabindex: 0 }, planGraph(query.plan)));
  if (query.stages.length) {
    const show = (name) => { const found = root.querySelector(`details[data-stage="${CSS.escape(name)}"]`); if (found) { found.open = true; found.scrollIntoView(); } };
    parts.push(element("h2", {}, "Tasks by worker"), element("div", { class: "scroll", tabindex: 0 }, timeline(query.stages, end, show)));
    if (query.tasks_left_out) parts.push(element("p", { class: "dim" }, `${count(query.tasks_left_out)} more attempts are not drawn.`));
    if (query.exchanges.length) parts.push(element("h2", {}, "Exchanges"), element("div", { class: "scroll", tabindex: 0 }, flow(query.stages, query.exchanges)));
    parts.push(element("h2", {}, "Stages"), ...query.stages.map(drawStage));
  }
  if (query.recovery.length) {
    parts.push(element("h2", {}, "Recovery"), table([["after", "number"], ["event", ""], ["stage", ""], ["task", ""], ["why", ""]], query.recovery.map((event) =>
      element("tr", {}, number(seconds(event.at)), element("td", {}, event.event), element("td", {}, event.stage), element("td", {}, event.task ?? ""), element("td", {}, event.code ?? "")))));
  }
  return parts.filter((part) => part !== null);
}

function split(times) {
  const all = Object.entries(times), total = all.reduce((sum, [, value]) => sum + value, 0) || 1;
  return element("div", {}, element("div", { class: "split", role: "img", "aria-label": "share of each part" }, all.map(([name, value], place) =>
    element("span", { class: `p${place}`, title: `${name}: ${seconds(value)}`, "width%": (100 * value) / total }))),
  element("div", { class: "legend" }, all.map(([name, value], place) => element("span", {}, element("i", { class: `p${place}` }), `${name} ${seconds(value)}`))));
}

function drawStage(stage) {
  const operators = stage.operators.map((operator) => element("tr", {}, element("td", {}, operator.name), number(count(operator.output_rows)),
    number(operator.elapsed_compute === undefined ? "" : seconds(operator.elapsed_compute / 1e9)), number(bytes(operator.spilled_bytes))));
  const facts = [`${stage.tasks.length} attempts (planned ${stage.planned_tasks} tasks)`, `${count(stage.rows)} rows`, bytes(stage.bytes), seconds(stage.seconds), `skew ${stage.skew}`];
  if (stage.fetch_wait_seconds) facts.push(`waited ${seconds(stage.fetch_wait_seconds)} for its input`);
  if (stage.spilled_bytes) facts.push(`${bytes(stage.spilled_bytes)} spilled`);
  if (stage.failures) facts.push(`${stage.failures} failed`);
  return element("details", { "data-stage": stage.name }, element("summary", {}, element("b", {}, `stage ${stage.name}`), ` ${facts.join(" · ")}`),
    stage.decisions.length ? element("ul", {}, stage.decisions.map((decision) => element("li", {}, decision))) : null,
    operators.length ? table([["operator", ""], ["rows", "number"], ["time, all tasks", "number"], ["spilled", "number"]], operators) : null);
}

// ------------------------------------------------------------------------------------------------ the others

async function comparePage(root, first, second) {
  const { queries, figures, times, only } = await get(`api/compare?${new URLSearchParams({ a: first, b: second })}`);
  const change = ([a, b]) => (a && b && Number.isFinite(a) && Number.isFinite(b) ? `${(b / a).toFixed(2)}×` : "");
  const show = (name, value) => (name.includes("bytes") ? bytes(value) : /seconds|planning|capture|stages|Spark|rows$/.test(name) && name !== "rows" && !name.includes("tasks") ? seconds(value) : count(value));
  const line = ({ name, values }) => element("tr", {}, element("td", {}, name.replaceAll("_", " ")), values.map((value) => number(show(name, value))), number(change(values)));
  const heads = [["", ""], ...queries.map((query) => [`${query.action} ${query.query}`, "number"]), ["second to first", "number"]];
  root.replaceChildren(element("h1", {}, "Two queries"),
    element("div", { class: "two" }, queries.map((query) => element("div", { class: "card" }, queryLink(query.query), " ", badge(query.engine), " ", badge(query.outcome), element("div", {}, query.description), element("div", { class: "dim" }, `${query.caller} · ${time(query.started)}`), split(query.times)))),
    element("h2", {}, "Figures"), table(heads, figures.map(line)), element("h2", {}, "Where the time went"), table(heads, times.map(line)),
    element("h2", {}, "Operators that only one of them has"),
    element("div", { class: "two" }, only.map((texts) => element("ul", { class: "plain card" }, texts.length ? texts.map((text) => element("li", {}, text)) : element("li", { class: "dim" }, "none")))),
    element("h2", {}, "Plans"), element("div", { class: "two" }, queries.map((query) => element("div", { class: "scroll", tabindex: 0 }, planGraph(query.plan)))));
  return { close() {}, changed() {} };
}

async function daemonsPage(root) {
  let timer = 0;
  const load = async () => {
    const found = await get("api/daemons");
    const rows = found.map((one) => element("tr", {}, element("td", {}, one.address), element("td", {}, one.kind),
      element("td", {}, badge(one.status), one.message ? element("div", { class: "problem" }, one.message) : null),
      number(one.running === undefined ? "" : `${one.running} of ${one.slots}`), number(bytes(one.held_bytes)),
      number(one.shuffle_limit_bytes === undefined ? bytes(one.memory_limit_bytes) : bytes(one.shuffle_limit_bytes)), number(bytes(one.disk_bytes)), number(bytes(one.memory_bytes)), number(seconds(one.uptime_seconds))));
    root.replaceChildren(element("h1", {}, "Workers and shuffle servers"), rows.length
      ? table([["address", ""], ["kind", ""], ["state", ""], ["tasks", "number"], ["exchanged data", "number"], ["of", "number"], ["on disk", "number"], ["memory", "number"], ["up", "number"]], rows)
      : element("p", {}, "None are known here. Embedded queries need none; otherwise start the dashboard with --daemons host:port,..."));
    timer = setTimeout(() => load().catch(fail), 2000);
  };
  await load();
  return { close() { clearTimeout(timer); }, changed() {} };
}

async function storagePage(root) {
  let timer = 0;
  const load = async () => {
    const found = await get("api/frames");
    const rows = (found ?? []).map((one) => element("tr", {}, element("td", {}, one.label.name), element("td", {}, one.label.level),
      number(one.rows.toLocaleString()), number(bytes(one.memory_bytes)), number(bytes(one.disk_bytes)), number(one.hits.toLocaleString())));
    root.replaceChildren(element("h1", {}, "Cached frames"), rows.length
      ? table([["frame", ""], ["storage level", ""], ["rows", "number"], ["in memory", "number"], ["on disk", "number"], ["hits", "number"]], rows)
      : element("p", {}, found ? "No frame is kept." : "The program that caches frames shows them: call volley.dashboard(spark) there."));
    timer = setTimeout(() => load().catch(fail), 2000);
  };
  await load();
  return { close() { clearTimeout(timer); }, changed() {} };
}

async function reasonsPage(root, code) {
  const found = await get("api/reasons");
  root.replaceChildren(element("h1", {}, "Reasons why something is not native"), table([["code", ""], ["meaning", ""]], found.map((one) =>
    element("tr", { id: `reason-${one.reason}`, class: one.reason === code ? "here" : null }, element("td", {}, element("code", {}, one.reason)), element("td", {}, one.meaning)))));
  if (code) document.getElementById(`reason-${code}`)?.scrollIntoView({ block: "center" });
  return { close() {}, changed() {} };
}

// ------------------------------------------------------------------------------------------------ all pages

function fail(error) {
  main.replaceChildren(element("h1", {}, "This did not work"), element("p", { class: "problem" }, error.message), element("p", {}, element("a", { href: "#/" }, "All queries")));
}

let turn = 0;
async function show() {
  const mine = ++turn;
  page.close();
  page = { close() {}, changed() {} };
  // Each page draws into an element of its own: one that is late does not draw over the next.
  const root = element("div");
  main.replaceChildren(root);
  const [, name = "", ...rest] = location.hash.split("/").map(decodeURIComponent);
  const pages = { "": listPage, query: queryPage, compare: comparePage, daemons: daemonsPage, storage: storagePage, reasons: reasonsPage };
  try {
    const made = await (pages[name] ?? listPage)(root, ...rest);
    if (mine === turn) page = made;
    else made.close();
  } catch (error) {
    if (mine === turn) fail(error);
  }
  document.title = `Volley${name ? ` · ${name}` : ""}`;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
}
const changeTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", changeTheme);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (page.key?.(event.key)) event.preventDefault();
  else if (event.key === "t") changeTheme();
  else if (event.key === "g") location.hash = "#/";
});
addEventListener("hashchange", show);

const changes = new EventSource("api/changes");
changes.addEventListener("open", () => { live.textContent = "live"; live.className = "on"; });
changes.addEventListener("error", () => { live.textContent = "not connected"; live.className = "off"; });
changes.addEventListener("query", (event) => page.changed(JSON.parse(event.data)));
show();
