// The console of one gateway: asks it, explains its answers, and lets an operator look after its engines.
// It talks to the gateway that served it and to nobody else. Whatever an engine said is shown as text, never as markup.

const KEY = "rcp-console-key";
const HUES = 8;
const MAX_SHOWN = 20000; // characters of a hit that are shown at once, however long it is
const REFRESH_MS = 3000;

// ---------------------------------------------------------------- what is made of text and elements

const NAMED = { 0x200e: "LRM", 0x200f: "RLM", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO",
  0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM", 0x200b: "ZWSP" };
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Text as it can be read: what would act on the page instead of being seen is named, piles of marks are counted. */
function visible(text) {
  return String(text)
    .replace(UNSEEN, (sign) => {
      const code = sign.charCodeAt(0);
      if (code < 0x20) return String.fromCharCode(0x2400 + code);
      return `⟨${NAMED[code] || "U+" + code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
    })
    .replace(/(\p{M}{4})(\p{M}+)/gu, (_, kept, more) => `${kept}⟨+${[...more].length} marks⟩`);
}

/** An element: `h("p", {class: "x", onclick: f}, "text", child)`. Strings become text, null and false nothing. */
function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function svg(tag, props, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const styled = (element, styles) => { Object.assign(element.style, styles); return element; };
const hidden = (text) => h("span", { class: "hidden-label" }, text);
const chip = (text, kind) => h("span", { class: `chip ${kind || ""}`, title: visible(text) }, visible(text));
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const ms = (value) => (value === null || value === undefined ? "–" : value < 10 ? `${value.toFixed(1)} ms` : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);
const percent = (share) => (share === null || share === undefined ? "–" : `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`);
/** A short message, with a button that belongs to it if there is one; it stays longer then. */
const say = (text, button) => { const box = document.getElementById("said"); box.replaceChildren(text, ...(button ? [" ", button] : [])); clearTimeout(say.timer); say.timer = setTimeout(() => { box.replaceChildren(); }, button ? 15000 : 5000); };
const table = (caption, heads, rows, kind) => h("div", { class: `scroll ${kind || ""}`, tabindex: 0, role: "region", "aria-label": caption },
  h("table", {}, h("caption", { class: "hidden-label" }, caption),
    h("thead", {}, h("tr", {}, heads.map(([text, type]) => h("th", { scope: "col", class: type }, text)))), h("tbody", {}, rows)));

const hues = new Map();
/** The colour of an engine: the same wherever it is shown. Text always says the name too. */
function hue(engine) {
  if (!hues.has(engine)) hues.set(engine, hues.size % HUES);
  return `var(--e${hues.get(engine)})`;
}

// ---------------------------------------------------------------- the gateway

class Refused extends Error {
  constructor(status, error) { super(error.message || `HTTP ${status}`); this.status = status; this.error = error; }
}

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}), ...more };
}

async function gateway(path, body, more) {
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers: headers(more), cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0, { message: "The gateway cannot be reached." });
  }
  if (response.ok) return response;
  let error = { message: `The gateway answered HTTP ${response.status}.` };
  try { error = (await response.json()).error || error; } catch { /* no JSON: the status says it */ }
  throw new Refused(response.status, error);
}

const read = async (path) => (await gateway(path)).json();
const send = async (path, body) => (await gateway(path, body)).json();

/** One `retrieve`, told as it comes along: `heard` gets each notification, the result is returned. */
async function retrieve(params, heard, signal) {
  const message = { jsonrpc: "2.0", id: 1, method: "retrieve",
    params: { ...params, _meta: { progressToken: "console", logLevel: "debug" } } };
  let response;
  try {
    response = await fetch("/rcp/retrieve", { method: "POST", signal, body: JSON.stringify(message),
      headers: headers({ accept: "application/json, text/event-stream" }) });
  } catch (fault) {
    if (signal.aborted) throw fault;
    throw new Refused(0, { message: "The gateway cannot be reached." });
  }
  let answer;
  if ((response.headers.get("content-type") || "").startsWith("text/event-stream")) {
    for await (const event of events(response.body)) {
      if (event.method) heard(event.method, event.params); else answer = event;
    }
  } else {
    answer = await response.json();
  }
  if (!answer) throw new Refused(0, { message: "The answer broke off." });
  if (answer.error) throw new Refused(response.status, answer.error);
  return answer.result;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data) yield JSON.parse(data);
    }
  }
}

// ---------------------------------------------------------------- the question, and its permalink

const fresh = () => ({ query: "", k: 10, mode: "", engines: [], method: "", rrfK: null, confidence: null, weights: {}, conditions: [] });
let question = fresh();
let asked = null; // the last question and what became of it

function toHash(view) {
  const said = new URLSearchParams();
  if (question.query) said.set("q", question.query);
  if (question.k !== 10) said.set("k", question.k);
  for (const name of ["mode", "method"]) if (question[name]) said.set(name, question[name]);
  if (question.engines.length) said.set("engines", question.engines.join(","));
  if (question.rrfK !== null) said.set("rrfK", question.rrfK);
  if (question.confidence !== null) said.set("confidence", question.confidence);
  if (question.conditions.length) said.set("filter", JSON.stringify(question.conditions));
  for (const [engine, weight] of Object.entries(question.weights)) said.set(`w.${engine}`, weight);
  const text = said.toString();
  return `#/${view}${text ? "?" + text : ""}`;
}

function fromHash(said) {
  const asNumber = (name) => (said.has(name) && Number.isFinite(Number(said.get(name))) ? Number(said.get(name)) : null);
  question = fresh();
  question.query = said.get("q") || "";
  question.k = Math.max(1, Math.round(asNumber("k") || 10));
  question.mode = said.get("mode") || "";
  question.method = said.get("method") || "";
  question.engines = (said.get("engines") || "").split(",").filter(Boolean);
  question.rrfK = asNumber("rrfK");
  question.confidence = asNumber("confidence");
  try {
    const conditions = JSON.parse(said.get("filter") || "[]");
    question.conditions = (Array.isArray(conditions) ? conditions : []).filter((one) => one && typeof one.field === "string")
      .map(({ field, op, value }) => ({ field, op: String(op ?? "eq"), value: Array.isArray(value) ? value.join(",") : String(value ?? "") })); // written by hand it may hold anything
  } catch { question.conditions = []; }
  for (const [name, value] of said) if (name.startsWith("w.") && Number.isFinite(Number(value))) question.weights[name.slice(2)] = Number(value);
}

/** The params of the `retrieve` that the form says. */
function params() {
  const made = { query: question.query, k: question.k };
  if (question.mode) made.mode = question.mode;
  const leaves = question.conditions.map(leaf);
  if (leaves.length) made.filter = leaves.length === 1 ? leaves[0] : { and: leaves };
  const fusion = {};
  if (question.method) fusion.method = question.method;
  if (question.rrfK !== null) fusion.rrfK = question.rrfK;
  if (Object.keys(question.weights).length) fusion.weights = { ...question.weights };
  if (Object.keys(fusion).length) made.fusion = fusion;
  const own = {};
  if (question.engines.length) own.engines = question.engines;
  if (question.confidence !== null) own.confidenceWeight = question.confidence;
  if (Object.keys(own).length) made["x-gateway"] = own;
  return made;
}

function leaf({ field, op, value }) {
  const type = (known.fields || {})[field];
  const typed = (text) => {
    if (type === "int" || type === "float") return Number.isFinite(Number(text)) && text.trim() !== "" ? Number(text) : text;
    if (type === "bool") return text === "true";
    return text;
  };
  if (op === "exists") return { field, op, value: value !== "false" };
  if (op === "in" || op === "nin") return { field, op, value: value.split(",").map((part) => typed(part.trim())) };
  return { field, op, value: typed(value) };
}

// ---------------------------------------------------------------- what is known of the gateway

const known = { session: null, engines: [], disabled: [], merged: {}, fields: null, operators: [] };

/** Engines that this operator's questions can reach: those that its tenant sees. */
const reachable = () => known.engines.filter((engine) => known.session.sees.includes(engine.id) || engine.state === "off");

async function learn() {
  known.session = await read("/admin/session");
  take(await read("/admin/engines"));
  document.getElementById("who").textContent = visible(`${known.session.identity} · ${known.session.version}${known.session.tenant ? ` · ${known.session.tenant}` : ""}`);
  document.getElementById("forget").hidden = !sessionStorage.getItem(KEY);
}

// ---------------------------------------------------------------- the state of the federation, in every view's header

let health = null; // the latest answer of /admin/health
let healthAt = 0;  // when it came (performance.now), to say how old the page's data are
let healthTimer = null;

const WORDS = { down: "down", slow: "slow", unreached: "not reached yet", off: "switched off", up: "up" };
const KINDS = { down: "bad", slow: "warn", unreached: "warn", off: "", up: "good" };

/** Load the state now, and every few seconds while the page is seen. */
async function followHealth() {
  clearTimeout(healthTimer);
  if (!document.hidden) {
    try {
      health = await read("/admin/health");
      healthAt = performance.now();
      showGone(false);
      drawHealth();
    } catch (fault) {
      if (!(fault instanceof Refused)) throw fault;
      if (fault.status === 0) showGone(true);
      else if (fault.status === 401 || fault.status === 403) { health = null; drawHealth(); return; }
    }
  }
  healthTimer = setTimeout(followHealth, REFRESH_MS);
}

/** "1 down · 1 slow · 2 up": each part leads to the engines it is about. */
function drawHealth() {
  const box = document.getElementById("health");
  if (!health) { box.replaceChildren(); return; }
  const parts = Object.entries(health.counts).filter(([, many]) => many).map(([state, many]) => {
    const first = health.trouble.find((engine) => engine.state === state);
    const target = state === "up" ? "#/engines" : many === 1 && first ? `#/engines?id=${encodeURIComponent(first.id)}` : "#/federation";
    return h("a", { class: `chip ${KINDS[state]}`, href: target }, `${many} ${WORDS[state]}`);
  });
  const text = parts.map((part) => part.textContent).join(" · ") || "no engines";
  if (box.dataset.text === text) return; // a screen reader is only told what has changed
  box.dataset.text = text;
  box.replaceChildren(...(parts.length ? parts.flatMap((part, place) => (place ? [h("span", { "aria-hidden": "true" }, " · "), part] : [part])) : [text]));
}

/** While the gateway cannot be reached, the page is dimmed and says how old what it shows is. */
function showGone(gone) {
  const line = document.getElementById("gone");
  document.body.classList.toggle("gone", gone);
  line.hidden = !gone;
  if (!gone) return;
  const age = healthAt ? ` What you see is ${ms(performance.now() - healthAt)} old.` : "";
  line.textContent = `The gateway cannot be reached.${age} Trying again every ${REFRESH_MS / 1000} s.`;
}

function take(answer) {
  Object.assign(known, answer);
  known.engines.forEach((engine) => hue(engine.id));
  const filter = known.merged.filter || {};
  const fields = filter.fields || {};
  known.fields = Array.isArray(fields) ? Object.fromEntries(fields.map((name) => [name, "text"])) : fields;
  known.operators = filter.operators || ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "exists"];
}

// ---------------------------------------------------------------- view: federation

function viewFederation() {
  main.replaceChildren(h("p", { class: "state" }, "Loading…"));
  refreshing(async (current) => {
    health = await read("/admin/health");
    healthAt = performance.now();
    drawHealth();
    if (!current()) return;
    const first = !document.getElementById("incident");
    redraw(federationParts());
    if (first) document.getElementById("query").focus({ preventScroll: true });
  });
}

function federationParts() {
  const { counts, trouble, partial } = health;
  const all = Object.values(counts).reduce((sum, many) => sum + many, 0);
  const words = Object.entries(counts).filter(([, many]) => many).map(([state, many]) => `${many} ${WORDS[state]}`).join(", ");
  return [
    h("div", { class: "head" }, h("h1", {}, "Federation"), h("p", {}, all ? `${count(all, "engine")}: ${words}.` : "The registry has no enabled engine.")),
    health.readiness ? h("p", { class: "fault-line" }, `The gateway is not ready: ${visible(health.readiness)}.`) : null,
    quickQuestion(),
    h("section", { class: "card", "aria-label": "Trouble" }, h("div", { class: "bar-head" }, h("h2", {}, "Trouble"), h("div", { class: "row" }, linksTo(), h("button", { type: "button", id: "incident", onclick: copyIncident }, "Copy incident summary"))),
      trouble.length ? h("ul", { class: "trouble" }, trouble.map(troubleRow)) : h("p", { class: "state inset" }, "All engines answer in time."),
      trouble.length < all - counts.up ? h("p", { class: "soft small" }, `The first ${trouble.length} of ${all - counts.up}.`) : null),
    partialCard(partial),
  ].filter(Boolean);
}

/** The question field of the landing page: the answer is shown in the view Ask. */
function quickQuestion() {
  const box = h("input", { type: "search", id: "query", autocomplete: "off", required: true, "data-keep-value": "", value: question.query });
  const submit = (event) => { event.preventDefault(); question.query = box.value; history.pushState(null, "", toHash("ask")); route(); ask(); };
  return h("form", { class: "card quick", "aria-label": "Question", onsubmit: submit }, field("Ask the federation", box), h("button", { class: "primary", id: "ask" }, "Ask"));
}

/** p95 as a bar against the timeout; the words say the same. */
function timeBar(engine) {
  if (engine.p95Ms === null) return h("span", { class: "soft small" }, "no calls in the last five minutes");
  const share = Math.min(1, engine.p95Ms / engine.timeoutMs);
  return h("div", { class: "time" }, h("div", { class: "share", "aria-hidden": "true" }, styled(h("i", { class: share >= 0.8 ? "bad" : "" }), { width: `${share * 100}%` })),
    h("span", { class: "small" }, `p95 ${ms(engine.p95Ms)} of ${ms(engine.timeoutMs)}`, engine.hourP95Ms === null ? "" : `, hour before ${ms(engine.hourP95Ms)}`));
}

function troubleRow(engine) {
  const facts = [
    engine.sinceMs === null ? null : `for ${age(engine.sinceMs)}`,
    engine.nextTryMs === null ? null : `next try in ${age(engine.nextTryMs)}`,
    engine.errorRate === null ? null : `${percent(engine.errorRate)} of ${count(engine.calls, "call")} failed`,
  ].filter(Boolean).join(" · ");
  return h("li", { "data-trouble": engine.id },
    h("p", {}, chip(WORDS[engine.state], KINDS[engine.state]), " ", h("a", { href: `#/engines?id=${encodeURIComponent(engine.id)}`, id: `trouble-${engine.id}` }, visible(engine.id)), " ", h("span", { class: "soft small" }, facts)),
    engine.reason ? h("p", { class: "small mono" }, visible(engine.reason)) : null,
    engine.lastFault && !(engine.reason || "").includes(engine.lastFault.detail) ? h("p", { class: "small soft" }, `Last error ${age(engine.lastFault.agoMs)} ago: `, h("span", { class: "mono" }, visible(`${engine.lastFault.kind}: ${engine.lastFault.detail}`))) : null,
    h("p", { class: "small soft mono" }, visible(engine.address)), timeBar(engine));
}

/** A duration for people: 45 s, 12 min, 3 h. */
const age = (value) => (value < 1000 ? "a moment" : value < 120000 ? `${Math.round(value / 1000)} s` : value < 7200000 ? `${Math.round(value / 60000)} min` : `${Math.round(value / 3600000)} h`);

/** Links that the settings name; they open elsewhere, without a trace of where they were. */
function linksTo(requestId) {
  const { dashboard, runbook, logs } = health.links;
  const link = (text, url) => (url ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, text) : null);
  if (requestId) return logs && logs.includes("{request_id}") ? link(requestId, logs.replace("{request_id}", encodeURIComponent(requestId))) : null;
  return [link("Dashboard", dashboard), link("Runbook", runbook), link("Logs", logs && logs.replace("{request_id}", ""))];
}

function partialCard(partial) {
  if (!partial.length) return h("section", { class: "card", "aria-label": "Partial answers" }, h("h2", {}, "Partial answers"), h("p", { class: "state inset" }, "None since the start of this process."));
  const rows = partial.slice(0, 20).map((one) => h("tr", {}, h("th", { scope: "row", class: "mono" }, linksTo(one.requestId) || visible(one.requestId)), h("td", {}, `${age(one.agoMs)} ago`), h("td", {}, visible(one.method)), h("td", { class: "wrap" }, visible(one.missing.join(", ")))));
  return h("section", { class: "card", "aria-label": "Partial answers" }, h("h2", {}, "Partial answers ", h("span", { class: "soft small" }, `the latest ${count(partial.length, "answer")} of this process that lacked an engine`)),
    table("Partial answers", [["Request id"], ["When"], ["Method"], ["Without"]], rows, "tall"));
}

/** Plain text for a chat or a ticket: what is wrong since when, and which answers were partial. */
function incidentText() {
  const at = (agoMs) => new Date(Date.now() - agoMs).toISOString().replace(/\.\d+Z$/, "Z");
  const lines = [`rcp-gateway ${known.session.identity} (${known.session.version}), ${at(0)}`, `Engines: ${Object.entries(health.counts).filter(([, many]) => many).map(([state, many]) => `${many} ${WORDS[state]}`).join(", ") || "none"}`];
  for (const engine of health.trouble) {
    const since = engine.sinceMs === null ? "" : ` since ${at(engine.sinceMs)}`;
    const rate = engine.errorRate === null ? "" : `; ${percent(engine.errorRate)} of ${count(engine.calls, "call")} in five minutes failed`;
    lines.push(`- ${engine.id}: ${WORDS[engine.state]}${since}${engine.reason ? ` (${engine.reason})` : ""}${rate}`);
  }
  if (health.partial.length) lines.push(`Partial answers: ${health.partial.length}${health.partial.length === 100 ? " or more" : ""}, first ${at(health.partial.at(-1).agoMs)}, latest ${at(health.partial[0].agoMs)}`);
  for (const one of health.partial.slice(0, 10)) lines.push(`- ${one.requestId} ${at(one.agoMs)} ${one.method} without ${one.missing.join(", ")}`);
  return visible(lines.join("\n"));
}

async function copyIncident() {
  const text = incidentText();
  try { await navigator.clipboard.writeText(text); say("The incident summary is copied."); } catch { showText("Incident summary", text); }
}

// ---------------------------------------------------------------- view: ask

const main = document.getElementById("main");
let running = null;
let refusing = null;

function viewAsk() {
  const results = h("div", { id: "results" });
  main.replaceChildren(h("h1", { class: "hidden-label" }, "Ask"), h("div", { class: "ask" }, askForm(), results));
  showAnswer();
  if (!asked) document.getElementById("query").focus();
}

function field(label, control) { return h("label", {}, label, control); }

function choice(name, options, value, change) {
  return h("select", { id: name, onchange: (event) => change(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

function askForm() {
  const retrieveOffer = known.merged.retrieve || {};
  const modes = [["", "any mode"], ...(retrieveOffer.modes || []).map((mode) => [mode, mode])];
  return h("form", { class: "card", "aria-label": "Question", onsubmit: (event) => { event.preventDefault(); ask(); } },
    field("Question", h("input", { type: "search", id: "query", required: true, autocomplete: "off", value: question.query,
      oninput: (event) => { question.query = event.target.value; } })),
    h("div", { class: "pair" },
      field("Hits (k)", h("input", { type: "number", id: "k", min: 1, max: retrieveOffer.maxK || 200, value: question.k,
        oninput: (event) => { question.k = Math.max(1, Math.round(Number(event.target.value)) || 10); } })),
      field("Mode", choice("mode", modes, question.mode, (value) => { question.mode = value; }))),
    h("button", { class: "primary", id: "ask" }, "Ask"),
    filterPart(), enginesPart(), blendPart());
}

const blank = (name) => ({ field: name, op: "eq", value: known.fields[name] === "bool" ? "true" : "" });

function filterPart() {
  const names = Object.keys(known.fields || {}).sort();
  const list = h("div", {});
  const draw = () => list.replaceChildren(...question.conditions.map((condition, place) => {
    const change = (name) => (value) => { condition[name] = value; };
    const type = known.fields[condition.field];
    return h("div", { class: "condition", role: "group", "aria-label": `Condition ${place + 1}` },
      field("Field", choice(`field-${place}`, names.map((name) => [name, `${visible(name)} (${known.fields[name]})`]), condition.field, (value) => { Object.assign(condition, blank(value), { op: condition.op }); draw(); })),
      h("button", { type: "button", class: "quiet", "aria-label": `Remove condition ${place + 1}`, onclick: () => { question.conditions.splice(place, 1); draw(); } }, "Remove"),
      h("div", { class: "pair" },
        field("Operator", choice(`op-${place}`, known.operators.map((op) => [op, op]), condition.op, change("op"))),
        field("Value", type === "bool"
          ? choice(`value-${place}`, [["true", "true"], ["false", "false"]], condition.value || "true", change("value"))
          : h("input", { type: "text", value: condition.value, id: `value-${place}`, placeholder: type || "", oninput: (event) => change("value")(event.target.value) }))));
  }), names.length
    ? h("button", { type: "button", id: "add-condition", onclick: () => { question.conditions.push(blank(names[0])); draw(); } }, "Add a condition")
    : h("p", { class: "soft small" }, "No engine advertises filter fields."));
  draw();
  return h("details", { open: question.conditions.length > 0 }, h("summary", {}, "Filter ", h("span", { class: "soft small" }, "all conditions must hold")), list);
}

function enginesPart() {
  const box = (engine) => h("label", { class: "check" },
    h("input", { type: "checkbox", checked: !question.engines.length || question.engines.includes(engine.id), onchange: (event) => {
      const all = reachable().map((one) => one.id);
      const set = new Set(question.engines.length ? question.engines : all);
      if (event.target.checked) set.add(engine.id); else set.delete(engine.id);
      question.engines = set.size === all.length || !set.size ? [] : [...set];
    } }), styled(h("span", { class: "swatch", "aria-hidden": "true" }), { background: hue(engine.id) }), visible(engine.id), engine.state === "up" ? null : chip(engine.state, engine.state === "off" ? "" : "warn"));
  return h("details", { open: question.engines.length > 0 }, h("summary", {}, "Engines ", h("span", { class: "soft small" }, "who is asked")),
    h("div", { class: "many", tabindex: 0, role: "group", "aria-label": "Engines to ask" }, reachable().map(box)));
}

function slider(name, label, least, most, step, value, change) {
  const shown = h("output", { for: name }, String(value));
  return h("div", { class: "slider" }, h("label", { for: name }, h("span", {}, h("b", {}, label), shown)),
    h("input", { type: "range", id: name, min: least, max: most, step, value, oninput: (event) => {
      shown.textContent = event.target.value;
      change(Number(event.target.value));
      refuse();
    } }));
}

function blendPart() {
  const base = (asked && asked.result && asked.result._meta["x-gateway"].fusion) || {};
  const methods = [["", "the gateway's own"], ["rrf", "rrf"], ["weighted", "weighted"], ["convex", "convex"]];
  return h("details", { id: "blend", open: innerWidth > 960 || asked !== null }, h("summary", {}, "Blend ", h("span", { class: "soft small" }, "moves at once")),
    field("Fusion method", choice("method", methods, question.method, (value) => { question.method = value; refuse(); })),
    slider("rrfK", "rrfK", 1, 200, 1, question.rrfK ?? base.rrfK ?? known.session.fusion.rrfK, (value) => { question.rrfK = value; }),
    slider("confidence", "Confidence weight", 0, 1, 0.05, question.confidence ?? base.confidenceWeight ?? known.session.fusion.confidenceWeight, (value) => { question.confidence = value; }),
    h("div", { class: "many", tabindex: 0, role: "group", "aria-label": "Weights of engines" }, reachable().map((engine) =>
      slider(`weight-${engine.id}`, visible(engine.id), 0, 5, 0.1, question.weights[engine.id] ?? engine.weight, (value) => { question.weights[engine.id] = value; }))));
}

async function ask() {
  if (!question.query.trim()) return;
  if (running) running.abort();
  const mine = running = new AbortController();
  history.replaceState(null, "", toHash("ask"));
  const sent = params();
  const chosen = question.engines.length ? question.engines : reachable().filter((engine) => engine.state !== "off").map((engine) => engine.id);
  const mineAsked = asked = { sent, query: question.query, legs: new Map(chosen.map((id) => [id, null])), partial: null, result: null, fault: null, refused: null, began: performance.now(), total: null };
  showAnswer();
  try {
    mineAsked.result = await retrieve({ ...sent, "x-gateway": { ...sent["x-gateway"], explain: true, report: "full" } }, (method, told) => {
      if (method === "notifications/log" && told.data && told.data.engine) mineAsked.legs.set(told.data.engine, told.data);
      if (method === "notifications/progress" && told.partial) mineAsked.partial = told.partial.hits;
      if (asked === mineAsked) soon();
    }, mine.signal);
  } catch (fault) {
    if (mine.signal.aborted) return;
    if (!(fault instanceof Refused)) throw fault;
    if (fault.status === 401) { askForKey(fault); return; }
    mineAsked.fault = fault;
  }
  mineAsked.total = performance.now() - mineAsked.began;
  if (running === mine) running = null;
  if (asked !== mineAsked) return;
  showAnswer();
  say(mineAsked.fault ? "The question failed." : `${count(mineAsked.result.hits.length, "hit")} in ${ms(mineAsked.total)}`);
}

/** Draw once for all that came since the last frame: fifty engines may answer within one. */
function soon() {
  if (soon.waiting) return;
  soon.waiting = true;
  requestAnimationFrame(() => { soon.waiting = false; showAnswer(); });
}

function showAnswer() {
  const results = document.getElementById("results");
  if (!results) return;
  if (!asked) {
    results.replaceChildren(h("div", { class: "state" }, h("h2", {}, "Ask the whole federation"),
      h("p", {}, `A question goes to ${count(reachable().filter((engine) => engine.state !== "off").length, "engine")} at once. You see who answers what, and why each hit stands where it does.`)));
    return;
  }
  const parts = [requestCard()];
  if (asked.fault) parts.push(faultCard(asked.fault));
  else parts.push(hitsCard());
  settle(results, parts);
}

/** Redraw, and let what is still there glide from where it was to where it is. */
function settle(box, parts) {
  const before = new Map([...box.querySelectorAll("[data-hit]")].map((hit) => [hit.dataset.hit, hit.getBoundingClientRect().top]));
  const opened = new Set([...box.querySelectorAll("details[open][data-keep]")].map((one) => one.dataset.keep));
  const focused = document.activeElement && box.contains(document.activeElement) ? document.activeElement.id : "";
  box.replaceChildren(...parts);
  for (const one of box.querySelectorAll("details[data-keep]")) if (opened.has(one.dataset.keep)) one.open = true;
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const hit of box.querySelectorAll("[data-hit]")) {
    const top = before.get(hit.dataset.hit);
    const way = top === undefined ? 0 : top - hit.getBoundingClientRect().top;
    if (Math.abs(way) > 1) hit.animate([{ transform: `translateY(${way}px)` }, { transform: "none" }], { duration: 260, easing: "cubic-bezier(.2,.7,.2,1)" });
    else if (top === undefined && before.size) hit.animate([{ opacity: 0.2 }, { opacity: 1 }], { duration: 260 });
  }
}

function faultCard(fault) {
  const data = fault.error.data || {};
  return h("section", { class: "card", role: "alert" }, h("h2", {}, "No answer"),
    h("p", { class: "fault-line" }, visible(fault.message), fault.error.code ? h("span", { class: "mono" }, ` (${fault.error.code})`) : null),
    data.field ? h("p", {}, "Field: ", h("code", {}, visible(data.field))) : null,
    data.retryAfterMs ? h("p", { class: "soft" }, `It may be asked again in ${ms(data.retryAfterMs)}.`) : null,
    (data.notes || []).length ? h("ul", {}, data.notes.map((note) => h("li", {}, visible(note)))) : null);
}

function requestCard() {
  const rows = asked.result ? doneRows() : goingRows();
  const usage = asked.result ? asked.result.usage : null;
  const notes = usage ? usage.notes || [] : [];
  const head = asked.fault ? "Failed" : asked.result
    ? `${ms(asked.total)} · ${count(usage.candidates, "candidate")} of ${count(answered(asked.result).length, "engine")}` : "Asking…";
  return h("section", { class: "card", "aria-label": "Request", "aria-busy": String(!asked.result && !asked.fault) },
    h("div", { class: "bar-head" }, h("h2", {}, "Request ", h("span", { class: "soft small" }, head)), h("div", { class: "row" }, copyButtons())),
    asked.result && asked.result._meta.degraded ? h("p", { class: "fault-line small" }, `Without ${visible(asked.result._meta.degraded.join(", "))}: the answer is partial.`) : null,
    rows.length ? h("ul", { class: "waterfall" }, rows) : null,
    notes.length ? h("details", { "data-keep": "notes" }, h("summary", { class: "small" }, `Notes (${notes.length})`), h("ul", { class: "small" }, notes.map((note) => h("li", {}, visible(note))))) : null);
}

const answered = (result) => result._meta["x-gateway"].engines.filter((engine) => engine.status === "ok");

function line(name, swatch, bar, what, failed) {
  return h("li", {}, h("span", { class: "name", title: visible(name) }, swatch ? [styled(h("span", { class: "swatch", "aria-hidden": "true" }), { background: hue(name), display: "inline-block", marginRight: "7px" })] : null, visible(name)),
    h("span", { class: "track", "aria-hidden": "true" }, bar), h("span", { class: `what ${failed ? "failed" : ""}` }, what));
}

function goingRows() {
  const span = Math.max(50, performance.now() - asked.began);
  return [...asked.legs].map(([engine, told]) => (told
    ? line(engine, true, styled(h("i", { class: told.status }), { left: 0, width: `${Math.min(100, told.tookMs / span * 100)}%` }), legWords(told), told.status === "failed")
    : line(engine, true, h("i", { class: "asked" }), asked.fault ? "" : "asked…")));
}

function legWords(leg) {
  const more = [];
  if (leg.attempts > 1) more.push(count(leg.attempts, "attempt"));
  if (leg.hedged) more.push("hedged");
  if (leg.replica) more.push(visible(leg.replica));
  const what = leg.status === "ok" ? (leg.hits === undefined ? "answered" : count(leg.hits, "hit")) : leg.reason || leg.status;
  return [what, ms(leg.tookMs), ...more].join(" · ");
}

function doneRows() {
  const report = asked.result._meta["x-gateway"].engines;
  const legs = report.filter((engine) => engine.status !== "skipped");
  const inside = asked.result.usage.latencyMs;
  const span = Math.max(asked.total, inside, 1);
  const wait = Math.max(0, asked.total - inside);
  const longest = Math.max(0, ...legs.map((leg) => leg.tookMs));
  const at = (from, took, kind) => styled(h("i", { class: kind }), { left: `${from / span * 100}%`, width: `${Math.max(0, took) / span * 100}%` });
  const rows = [line("wait", false, at(0, wait, ""), `${ms(wait)} to the gateway and back`)];
  for (const leg of legs) {
    const row = line(leg.id, true, at(wait, leg.tookMs, leg.status), legWords(leg), leg.status === "failed");
    if (leg.detail) row.title = visible(leg.detail);
    rows.push(row);
  }
  let now = wait + longest;
  const spent = asked.result._meta["x-gateway"].explain.spentMs;
  for (const [name, took] of [["rerank", spent.rerank], ["fuse", spent.fuse || 0], ["overhead", Math.max(0, inside - longest - (spent.rerank || 0) - (spent.fuse || 0))]]) {
    if (took === undefined) continue;
    rows.push(line(name, false, at(now, took, ""), ms(took)));
    now += took;
  }
  const left = report.filter((engine) => engine.status === "skipped");
  if (left.length) rows.push(h("li", { class: "soft" }, h("span", { class: "name" }, "not asked"), h("span", { class: "chips" }, left.map((engine) => chip(`${engine.id}: ${engine.reason}`)))));
  return rows;
}

function copyButtons() {
  const copy = (name, make) => h("button", { type: "button", class: "quiet", id: `copy-${name}`, onclick: async () => {
    try { await navigator.clipboard.writeText(make()); say(`Copied as ${name}.`); }
    catch { showText(`As ${name}`, make()); }
  } }, name);
  return [h("span", { class: "soft small" }, "Copy as"), copy("curl", asCurl), copy("Python", asPython), copy("MCP call", asMcp),
    copy("link", () => new URL(toHash("ask"), location.href).href)];
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const message = () => ({ jsonrpc: "2.0", id: 1, method: "retrieve", params: asked.sent });

function asCurl() {
  const key = sessionStorage.getItem(KEY) ? ' -H "Authorization: Bearer $RCP_KEY"' : "";
  return `curl -s ${quoted(location.origin + "/rcp/retrieve")} -H 'Content-Type: application/json'${key} -d ${quoted(JSON.stringify(message()))}`;
}

function asPython() {
  const key = sessionStorage.getItem(KEY) ? '\n    headers={"Authorization": f"Bearer {os.environ[\'RCP_KEY\']}"},' : "";
  return `import json${key ? "\nimport os" : ""}\n\nimport httpx2\n\nmessage = json.loads(${JSON.stringify(JSON.stringify(message()))})\nanswer = httpx2.post(\n    ${JSON.stringify(location.origin + "/rcp/retrieve")},\n    json=message,${key}\n).json()\nfor hit in answer["result"]["hits"]:\n    print(hit["score"], hit["id"], hit.get("text", "")[:80])\n`;
}

function asMcp() {
  const { query, k, filter, mode } = asked.sent;
  const engines = (asked.sent["x-gateway"] || {}).engines;
  const args = Object.fromEntries(Object.entries({ query, k, filter, mode, engines }).filter(([, value]) => value !== undefined));
  return JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: "retrieve", arguments: args } }, null, 2);
}

function showText(title, text) {
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, h("h2", {}, title), h("pre", { class: "full", tabindex: 0 }, text),
    h("form", { method: "dialog", class: "row" }, h("button", { class: "primary" }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

// ---------------------------------------------------------------- hits

function hitsCard() {
  const hits = shownHits();
  if (!hits.length) {
    return asked.result
      ? h("section", { class: "card" }, h("div", { class: "state inset" }, h("h2", {}, "No hits"), h("p", {}, "Every engine that was asked has answered, and none knows anything like this. Try other words, or fewer conditions.")))
      : h("section", { class: "card" }, h("p", { class: "state inset" }, "Waiting for the first engine…"));
  }
  return h("section", { class: "card", "aria-label": "Hits" },
    h("div", { class: "bar-head" }, h("h2", {}, count(hits.length, "hit"), asked.result ? null : h("span", { class: "soft small" }, " so far")),
      asked.result ? h("a", { href: toHash("explain"), class: "small" }, "Explain this answer") : null),
    asked.refused ? refusedLine() : null,
    h("ol", { class: "hits" }, hits.map(hitRow)));
}

/** The hits as they stand now: what has come so far, the answer, or the answer fused once more. */
function shownHits() {
  if (!asked.result) return (asked.partial || []).map((hit, place) => ({ hit, rank: place + 1, key: String(hit.id), parts: marks(hit) }));
  const explained = asked.result._meta["x-gateway"].explain;
  const plain = asked.result.hits.map((hit, place) => ({ hit, rank: place + 1, key: explained.hits[place].key, parts: explained.hits[place].parts }));
  if (!asked.refused) return plain;
  const was = new Map(plain.map((one) => [one.key, one]));
  return asked.refused.hits.map((one, place) => {
    const before = was.get(one.key);
    const score = asked.refused.ceiling > 0 ? Math.min(1, one.sum / asked.refused.ceiling) : 0;
    return { hit: { ...(before ? before.hit : listed(one.key)), score }, rank: place + 1, key: one.key, parts: one.parts, was: before ? before.rank : null, moved: true };
  });
}

const marks = (hit) => ((hit.meta || {}).engines || []).map((mark) => ({ engine: mark.id, rank: mark.rank, confidence: mark.confidence, share: null }));

/** A document that no served hit holds, as the lists of the engines know it. */
function listed(key) {
  for (const list of asked.result._meta["x-gateway"].explain.lists) {
    const found = list.hits.find((hit) => hit.key === key);
    if (found) return { id: found.id, text: found.snippet || "", citation: { title: found.title }, brief: true };
  }
  return { id: key };
}

const textOf = (hit) => (typeof hit.text === "string" && hit.text ? hit.text : (Array.isArray(hit.content) ? hit.content : []).map((block) => (typeof block === "string" ? block : (block && block.text) || "")).join("\n"));

function titleOf(hit) {
  for (const place of [hit.citation, hit, hit.meta]) if (place && typeof place.title === "string" && place.title.trim()) return place.title.slice(0, 200);
  return String(hit.id).slice(0, 200);
}

function hitRow({ hit, rank, key, parts, was, moved }) {
  const text = textOf(hit);
  const trust = hit.trust && typeof hit.trust === "object" ? hit.trust : null;
  const uri = hit.citation && typeof hit.citation.uri === "string" ? hit.citation.uri.slice(0, 200) : "";
  const by = moved ? (was === null ? ["new", "up"] : was > rank ? [`▲ ${was - rank}`, "up"] : was < rank ? [`▼ ${rank - was}`, "down"] : null) : null;
  return h("li", { class: "hit", "data-hit": key, "data-id": String(hit.id).slice(0, 200) },
    h("div", { class: "rank" }, String(rank), by ? h("span", { class: `moved ${by[1]}` }, by[0], hidden(was === null ? " in the list" : was > rank ? " places up" : " places down")) : null),
    h("div", {},
      h("h3", { dir: "auto" }, visible(titleOf(hit))),
      h("p", { class: "meta" }, h("span", {}, `score ${Number(hit.score).toFixed(4)}`), typeof hit.confidence === "number" ? h("span", {}, `confidence ${hit.confidence.toFixed(2)}`) : null,
        trust ? chip(visible(String(trust.level || "trust unknown")).slice(0, 40), trust.level === "trusted" ? "good" : trust.level === "untrusted" ? "bad" : "") : chip("no trust stated"),
        trust && trust.injectionSuspected === true ? chip("injection suspected", "bad") : null,
        uri ? h("span", { class: "mono" }, visible(uri)) : null),
      text ? h("p", { class: "snippet", dir: "auto" }, highlighted(text)) : h("p", { class: "snippet soft" }, "no text"),
      bar(parts), partsList(parts),
      text.length > 420 ? fullText(text, key) : null));
}

function fullText(text, key) {
  const box = h("div", {});
  const open = (event) => {
    if (!event.target.open || box.childElementCount) return;
    const more = text.length > MAX_SHOWN ? `\n… ${(text.length - MAX_SHOWN).toLocaleString("en")} more characters` : "";
    box.append(h("pre", { class: "full", dir: "auto", tabindex: 0, role: "region", "aria-label": "Whole text" }, visible(text.slice(0, MAX_SHOWN)) + more));
  };
  return h("details", { "data-keep": `text-${key}`, ontoggle: open }, h("summary", { class: "small" }, `Whole text (${text.length.toLocaleString("en")} characters)`), box);
}

/** A piece of the text around the first word of the question that it holds, those words marked. */
function highlighted(text) {
  const words = [...new Set(asked.query.toLowerCase().match(/[\p{L}\p{N}_]{2,}/gu) || [])].slice(0, 20);
  const pattern = words.length ? new RegExp(words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).sort((a, b) => b.length - a.length).join("|"), "giu") : null;
  const first = pattern ? text.slice(0, 200000).search(pattern) : -1;
  const from = Math.max(0, first - 120);
  const piece = text.slice(from, from + 420);
  const made = [from > 0 ? "…" : ""];
  let at = 0;
  for (const found of pattern ? piece.matchAll(pattern) : []) {
    made.push(visible(piece.slice(at, found.index)), h("mark", {}, visible(found[0])));
    at = found.index + found[0].length;
  }
  made.push(visible(piece.slice(at)), from + 420 < text.length ? "…" : "");
  return made;
}

function bar(parts) {
  if (!parts.length || parts[0].share === null) return null;
  return h("div", { class: "stack", "aria-hidden": "true" }, parts.map((part) => styled(h("i", {}), { width: `${part.share * 100}%`, background: hue(part.engine) })));
}

function partsList(parts) {
  return h("ul", { class: "parts", "aria-label": "What each engine gave" }, parts.map((part) => h("li", {},
    styled(h("span", { class: "swatch", "aria-hidden": "true" }), { background: hue(part.engine) }),
    [visible(part.engine), `rank ${part.rank}`, typeof part.confidence === "number" ? `confidence ${part.confidence.toFixed(2)}` : null, part.share === null ? null : percent(part.share)].filter(Boolean).join(" · "))));
}

// ---------------------------------------------------------------- fusing once more, without asking

/** Fuse the lists that are here with the weights as they are set now. The gateway does the sums: there is one blend. */
function refuse() {
  history.replaceState(null, "", toHash("ask"));
  if (!asked || !asked.result) return;
  clearTimeout(refusing);
  const mine = asked;
  refusing = setTimeout(async () => {
    const explained = mine.result._meta["x-gateway"].explain;
    const fusion = mine.result._meta["x-gateway"].fusion || {};
    const lists = explained.lists.map(({ engine, weight, asked: fetched, scoreFloor, confidence, silent, calibration, hits }) => ({ engine, weight: question.weights[engine] ?? weight, asked: fetched, scoreFloor, confidence, silent, calibration,
      hits: hits.map(({ key, score, confidence: claimed }) => ({ key, score, ...(claimed === undefined ? {} : { confidence: claimed }) })) }));
    try {
      const fused = await send("/admin/fuse", { lists, k: mine.result.hits.length, method: question.method || explained.plan.fusion.method,
        rrfK: question.rrfK ?? fusion.rrfK, confidenceWeight: question.confidence ?? fusion.confidenceWeight, silent: fusion.silent });
      if (asked !== mine) return;
      mine.refused = fused;
      showAnswer();
    } catch (fault) { say(fault.message); }
  }, 30);
}

function refusedLine() {
  const before = new Set(asked.result._meta["x-gateway"].explain.hits.map((one) => one.key));
  const now = new Set(asked.refused.hits.map((one) => one.key));
  const gone = [...before].filter((key) => !now.has(key)).length;
  return h("div", { class: "refused", role: "status" }, h("span", {}, `Fused again (${asked.refused.method}) without calling engines.${gone ? ` ${count(gone, "hit")} dropped out.` : ""}`),
    h("button", { type: "button", id: "undo", onclick: () => {
      question.weights = { ...(asked.sent.fusion || {}).weights };
      question.method = (asked.sent.fusion || {}).method || "";
      question.rrfK = (asked.sent.fusion || {}).rrfK ?? null;
      question.confidence = (asked.sent["x-gateway"] || {}).confidenceWeight ?? null;
      asked.refused = null;
      history.replaceState(null, "", toHash("ask"));
      viewAsk();
    } }, "Back to the answer"));
}

// ---------------------------------------------------------------- view: explain

async function viewExplain() {
  const box = h("div", { id: "plan" });
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, "Explain"), h("p", {}, "Which engines would be called with which params, and why others would not. No engine is called.")),
    h("form", { class: "card", "aria-label": "Question", onsubmit: (event) => { event.preventDefault(); history.replaceState(null, "", toHash("explain")); dryRun(box); } },
      h("div", { class: "row" }, styled(field("Question", h("input", { type: "search", id: "query", required: true, value: question.query, autocomplete: "off", oninput: (event) => { question.query = event.target.value; } })), { flex: "1 1 260px" }),
        styled(h("button", { class: "primary" }, "Plan"), { alignSelf: "flex-end" })),
      h("p", { class: "small soft" }, saidOf())), box);
  styled(box, { marginTop: "16px" });
  if (question.query) await dryRun(box);
  else box.replaceChildren(h("p", { class: "state" }, "Write a question to see its plan."));
}

function saidOf() {
  const { query, k, ...more } = params();
  const said = Object.entries(more).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  return [`k ${k}`, ...said].map(visible).join(" · ");
}

async function dryRun(box) {
  const mine = asked && asked.result && asked.query === question.query ? asked : null;
  try {
    const { plan } = await send("/admin/explain", params());
    box.replaceChildren(planCard(plan), ...(mine ? [partsCard(mine)] : []), rawCard("The plan as JSON", plan));
  } catch (fault) {
    if (!(fault instanceof Refused)) throw fault;
    if (fault.status === 401 || fault.status === 403) { askForKey(fault); return; }
    box.replaceChildren(faultCard(fault));
  }
}

function planCard(plan) {
  const heads = [["Engine"], ["Weight", "num"], ["Deadline", "num"], ["Asked for", "num"], ["Params it would get"]];
  const rows = plan.legs.map((leg) => h("tr", {}, h("th", { scope: "row" }, visible(leg.engine), leg.required ? [" ", chip("required", "own")] : null),
    h("td", { class: "num" }, String(leg.weight)), h("td", { class: "num" }, ms(leg.deadlineMs)), h("td", { class: "num" }, String(leg.k)),
    h("td", { class: "wrap" }, (leg.without || []).map((name) => [chip(name, "lack"), " "]), h("details", {}, h("summary", { class: "small" }, Object.keys(leg.params).filter((name) => name !== "_meta").join(", ")), h("pre", {}, visible(JSON.stringify(leg.params, null, 2)))))));
  const out = plan.left.map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.engine)), h("td", {}, chip(one.reason, "warn")), h("td", { class: "wrap" }, visible(one.detail || ""))));
  return h("section", { class: "card", "aria-label": "Plan" }, h("h2", {}, `Plan: ${count(plan.legs.length, "engine")} asked, ${plan.left.length} left out`),
    h("p", { class: "soft small" }, `${plan.k} hits wanted, at least ${plan.window} of each engine${plan.union ? `, the best ${plan.union.topN} reranked by ${visible(plan.union.rerankers.join(" or "))}` : ""} · ${plan.fusion.method}, rrfK ${plan.fusion.rrfK}, confidence weight ${plan.fusion.confidenceWeight}, one document by ${plan.fusion.identity}`),
    rows.length ? table("Engines that would be asked", heads, rows) : h("p", { class: "state inset" }, "No engine would be called."),
    out.length ? [h("h3", {}, "Left out"), table("Engines left out", [["Engine"], ["Reason"], ["Detail"]], out)] : null,
    plan.notes.length ? h("ul", { class: "small" }, plan.notes.map((note) => h("li", {}, visible(note)))) : null);
}

function partsCard(mine) {
  const explained = mine.result._meta["x-gateway"].explain;
  const engines = explained.lists.map((list) => list.engine);
  const rows = explained.hits.map((one, place) => {
    const by = new Map(one.parts.map((part) => [part.engine, part]));
    return h("tr", {}, h("td", { class: "num" }, String(place + 1)), h("th", { scope: "row", class: "wrap" }, h("bdi", {}, visible(titleOf(mine.result.hits[place])))), h("td", { class: "num" }, one.sum.toFixed(5)),
      engines.map((engine) => h("td", { class: "num" }, by.has(engine) ? [`#${by.get(engine).rank} · ${percent(by.get(engine).share)}`, typeof by.get(engine).confidence === "number" ? h("span", { class: "soft" }, ` (${by.get(engine).confidence.toFixed(2)})`) : null] : h("span", { class: "soft" }, "–"))));
  });
  return h("section", { class: "card", "aria-label": "Last answer" }, h("h2", {}, "Why each hit of the last answer stands there"),
    h("p", { class: "soft small" }, `Its rank in each engine's list, that engine's share of its sum, and the confidence. A document could have at most ${explained.ceiling === undefined ? "–" : explained.ceiling.toFixed(5)} (${visible(explained.method || "")}).`),
    rows.length ? table("Rank parts", [["#", "num"], ["Hit"], ["Sum", "num"], ...engines.map((engine) => [visible(engine), "num"])], rows) : h("p", { class: "state inset" }, "There are no hits."));
}

function rawCard(title, value) {
  return h("section", { class: "card" }, h("details", {}, h("summary", {}, title), h("pre", { class: "full", tabindex: 0 }, visible(JSON.stringify(value, null, 2)))));
}

// ---------------------------------------------------------------- view: engines

function viewEngines(said) {
  const chosen = said.get("id");
  const draw = () => {
    const detail = known.engines.find((engine) => engine.id === chosen);
    const parts = [h("div", { class: "head" }, h("h1", {}, "Engines"), h("p", {}, `The last ${Math.round(known.windowSeconds / 60)} minutes as this process saw them.`)), enginesCard(chosen)];
    if (detail) parts.push(engineCard(detail));
    else if (chosen) parts.push(h("p", { class: "state inset" }, `There is no engine “${visible(chosen)}”.`));
    parts.push(offersCard());
    redraw(parts);
  };
  const load = async (current) => { take(await read("/admin/engines")); if (current()) draw(); };
  draw();
  refreshing(load);
}

/** Redraw the view and leave the reader where they are: focus, scroll and what they have opened or typed stay. */
function redraw(parts) {
  const focused = document.activeElement && main.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = new Set([...main.querySelectorAll("details[open][data-keep]")].map((one) => one.dataset.keep));
  const typed = new Map([...main.querySelectorAll("[data-keep-value]")].map((one) => [one.id, one.value]));
  const scrolled = [...main.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollTop, one.scrollLeft]);
  main.replaceChildren(...parts);
  for (const one of main.querySelectorAll("details[data-keep]")) if (opened.has(one.dataset.keep)) one.open = true;
  for (const [id, value] of typed) if (document.getElementById(id)) document.getElementById(id).value = value;
  for (const [name, top, left] of scrolled) { const box = [...main.querySelectorAll(".scroll")].find((one) => one.getAttribute("aria-label") === name); if (box) { box.scrollTop = top; box.scrollLeft = left; } }
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
}

const STATES = { up: "good", down: "bad", unreached: "warn", off: "" };
/** The state of an engine, with "slow" for one that is up. */
const stateChip = (engine) => (engine.state === "up" && health && health.trouble.some((one) => one.id === engine.id && one.state === "slow") ? chip("slow", "warn") : chip(engine.state, STATES[engine.state]));
const BREAKERS = { closed: "", open: "bad", half_open: "warn" };
const breakerWords = (engine) => engine.breaker.replace("_", " ") + (engine.retryInMs ? `, again in ${ms(engine.retryInMs)}` : "");

function enginesCard(chosen) {
  if (!known.engines.length) return h("div", { class: "state" }, h("h2", {}, "No engines"), h("p", {}, "The registry names none that are enabled."));
  const top = axisTop(known.engines); // one scale for all, so that lines can be compared
  const heads = [["Engine"], ["State"], ["Breaker"], ["In flight", "num"], ["p50", "num"], ["p95", "num"], ["Errors", "num"], [`Last minutes, 0 to ${ms(top)}`]];
  const rows = known.engines.map((engine) => h("tr", { class: engine.id === chosen ? "chosen" : null, "data-engine": engine.id },
    h("th", { scope: "row" }, h("a", { href: `#/engines?id=${encodeURIComponent(engine.id)}`, id: `engine-${engine.id}`, "aria-current": engine.id === chosen ? "true" : null }, visible(engine.id))),
    h("td", {}, stateChip(engine), engine.drill ? [" ", chip(`drill: ${engine.drill.kind}`, "warn")] : null),
    h("td", {}, engine.breaker ? chip(breakerWords(engine), BREAKERS[engine.breaker]) : "–"),
    h("td", { class: "num" }, `${engine.inFlight}/${engine.limit ?? "∞"}${engine.waiting ? ` +${engine.waiting}` : ""}`),
    h("td", { class: "num" }, ms(engine.window.p50Ms)), h("td", { class: "num" }, ms(engine.window.p95Ms)),
    h("td", { class: "num" }, engine.window.calls ? percent(engine.window.failed / engine.window.calls) : "–"),
    h("td", { class: "spark-cell" }, chart(engine, "spark", top))));
  return h("section", { class: "card", "aria-label": "All engines" }, table("Engines", heads, rows, "tall"),
    known.disabled.length ? h("p", { class: "soft small" }, "Disabled in the registry: ", visible(known.disabled.join(", "))) : null);
}

/** How many calls were never sent, and why. */
function notSent(stretch) {
  const reasons = Object.entries(stretch.skipped);
  return reasons.length ? reasons.map(([reason, calls]) => `${calls} ${reason}`).join(", ") : 0;
}

/** The end of the time axis: the next round number above the slowest slot. */
function axisTop(engines) {
  const most = Math.max(1, ...engines.flatMap((engine) => engine.window.slots.map((slot) => slot.p95Ms || 0)));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((factor) => factor * power).find((end) => end >= most);
}

/** A chart with its axes: milliseconds upwards, minutes from left to right. */
function chartWithAxes(engine) {
  const top = axisTop([engine]);
  return h("div", { class: "axes" }, h("div", { class: "y", "aria-hidden": "true" }, [top, top / 2, 0].map((value) => h("span", {}, ms(value)))), chart(engine, "chart", top),
    h("div", { class: "x", "aria-hidden": "true" }, [known.windowSeconds, known.windowSeconds / 2, 0].map((seconds) => h("span", {}, seconds ? `−${seconds / 60} min` : "now"))));
}

/** p50 and p95 of each slot as lines up to `top` milliseconds, failures as blocks at the foot. */
function chart(engine, kind, top) {
  const { slots } = engine.window;
  const wide = 300, high = 60, step = wide / slots.length;
  const way = (name) => {
    let path = "", pen = false;
    slots.forEach((slot, place) => {
      if (slot[name] === null) { pen = false; return; }
      const x = (place + 0.5) * step, y = high - 4 - slot[name] / top * (high - 10);
      path += pen ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${(x - step / 2).toFixed(1)} ${y.toFixed(1)}L${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    });
    return path;
  };
  const words = engine.window.calls ? `${count(engine.window.calls, "call")}, ${engine.window.failed} failed, p50 ${ms(engine.window.p50Ms)}, p95 ${ms(engine.window.p95Ms)}` : "no calls";
  const made = svg("svg", { class: kind, viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", role: "img", "aria-label": `${visible(engine.id)}: ${words}` },
    svg("path", { class: "base", d: `M0 ${high - 1}H${wide}` }));
  slots.forEach((slot, place) => {
    if (!slot.failed) return;
    const tall = Math.max(6, slot.failed / slot.calls * (high - 4));
    made.append(svg("rect", { class: "err", x: place * step + 1, y: high - tall, width: step - 2, height: tall, opacity: 0.75 }));
  });
  made.append(svg("path", { class: "p95", d: way("p95Ms") }), svg("path", { class: "p50", d: way("p50Ms") }));
  return made;
}

function engineCard(engine) {
  const facts = [["Kind", engine.kind], ["Server", [engine.server, engine.version].filter(Boolean).join(" ") || "–"], ["Weight", engine.weight], ["Priority", engine.priority], ["Timeout", ms(engine.timeoutMs)],
    ["In flight", `${engine.inFlight} of ${engine.limit ?? "∞"}`], ["Waiting", engine.waiting || 0], ["Last check", ms(engine.latencyMs)], ["Calls", engine.window.calls], ["Failed", engine.window.failed], ["Not sent", notSent(engine.window)], ["Required", engine.required ? "yes" : "no"]];
  return h("section", { class: "card", "aria-label": `Engine ${visible(engine.id)}`, id: "engine" },
    h("div", { class: "bar-head" }, h("h2", {}, visible(engine.id), " ", stateChip(engine), " ", engine.breaker ? chip(`breaker ${breakerWords(engine)}`, BREAKERS[engine.breaker]) : null), actions(engine)),
    engine.reason ? h("p", { class: "fault-line" }, visible(engine.reason)) : null,
    engine.drill ? h("p", { class: "refused" }, h("span", {}, `A drill is on: ${engine.drill.kind}${engine.drill.delayMs ? ` by ${ms(engine.drill.delayMs)}` : ""}, ${ms(engine.drill.leftMs)} left.`), h("button", { type: "button", id: "end-drill", onclick: () => act(engine, "end_drill") }, "End it")) : null,
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(value))))),
    chartWithAxes(engine), h("p", { class: "legend" }, h("span", { class: "l50" }, `p50 ${ms(engine.window.p50Ms)}`), h("span", { class: "l95" }, `p95 ${ms(engine.window.p95Ms)}`), h("span", { class: "lerr" }, `failed ${engine.window.failed}`), h("span", { class: "ends" }, "calls of the last five minutes")),
    engine.lastFault ? h("p", { class: "small soft" }, "Last error ", ms(engine.lastFault.agoMs), " ago: ", h("span", { class: "mono" }, visible(`${engine.lastFault.kind}: ${engine.lastFault.detail}`))) : null,
    engine.stderr ? h("details", { "data-keep": "stderr" }, h("summary", { class: "small" }, "The last it wrote to stderr"), h("pre", { class: "full", tabindex: 0, role: "region", "aria-label": "Stderr", id: "stderr" }, visible(engine.stderr))) : null,
    engine.replicas.length ? [h("h3", {}, "Replicas"), table("Replicas", [["Replica"], ["State"], ["In flight", "num"]], engine.replicas.map((one) => h("tr", {}, h("th", { scope: "row", class: "mono" }, visible(one.id)), h("td", {}, chip(one.up ? "in use" : "ejected", one.up ? "good" : "bad")), h("td", { class: "num" }, String(one.inFlight)))))] : null,
    engine.calibration.length ? calibrationTable(engine) : null,
    h("h3", {}, "Advertisement ", h("span", { class: "soft small" }, "against the merged one")), difference(engine),
    known.session.drills ? drillForm(engine) : null);
}

/** What was learned of an engine: what it claims, what that is worth, and on how much evidence. */
function calibrationTable(engine) {
  const heads = [["Tenant"], ["Lists"], ["Claimed", "num"], ["Worth", "num"], ["Rewards", "num"], ["Trust", "num"]];
  const rows = engine.calibration.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.scope ? visible(one.scope) : "all"), h("td", {}, one.kind === "confident" ? "with confidences" : "without confidences"),
    h("td", { class: "num" }, percent(one.claimed)), h("td", { class: "num" }, percent(one.worth)), h("td", { class: "num" }, one.n.toFixed(1)), h("td", { class: "num" }, percent(one.trust))));
  return [h("h3", {}, "Learned calibration"), table("Learned calibration", heads, rows),
    h("button", { type: "button", id: "act-reset_calibration", onclick: () => act(engine, "reset_calibration") }, "Reset calibration")];
}

function actions(engine) {
  const button = (name, text) => h("button", { type: "button", id: `act-${name}`, onclick: () => act(engine, name) }, text);
  return h("div", { class: "row" }, button("handshake", "Handshake again"), engine.state === "off" ? button("on", "Switch on") : h("button", { type: "button", id: "act-off", onclick: () => confirmOff(engine) }, "Switch off…"), h("span", { class: "soft small" }, `concerns ${switchScope()}`), button("reset", "Reset breaker"));
}

/** Whom a switch concerns, in words. */
const switchScope = () => (health && health.switch === "all" ? "all processes that share the state" : "this process only");

/** Switching off takes an engine away from callers, so it is confirmed, and can be undone. */
function confirmOff(engine) {
  const opener = document.activeElement;
  const close = () => { box.close(); box.remove(); if (opener && opener.isConnected) opener.focus(); else document.getElementById("act-off")?.focus(); };
  const box = h("dialog", { "aria-label": `Switch off ${visible(engine.id)}`, oncancel: (event) => { event.preventDefault(); close(); } }, h("h2", {}, `Switch off ${visible(engine.id)}?`),
    h("p", {}, `No request is sent to it any more, and answers lack its hits. This concerns ${switchScope()}.`, engine.required ? " The engine is required: every request will fail." : ""),
    h("div", { class: "row" }, h("button", { type: "button", onclick: close }, "Cancel"),
      h("button", { type: "button", class: "primary", id: "confirm-off", onclick: () => { close(); act(engine, "off"); } }, "Switch off")));
  document.body.append(box);
  box.showModal();
  document.getElementById("confirm-off").focus();
}

async function act(engine, action, more) {
  try {
    const done = await send("/admin/actions", { engine: engine.id, action, ...more });
    take(await read("/admin/engines"));
    route();
    const opposite = { on: "off", off: "on" }[action];
    const undo = action === "off" ? h("button", { type: "button", id: "undo", onclick: () => act(engine, "on") }, "Undo") : null;
    say(`${engine.id}: ${done.said}`, undo);
    if (opposite) document.getElementById(`act-${opposite}`)?.focus(); // the button that was pressed is gone
    followHealth();
  } catch (fault) {
    if (fault.status === 401) askForKey(fault); else say(fault.message);
  }
}

function drillForm(engine) {
  const kind = choice("drill-kind", [["delay", "delay"], ["error", "error"], ["hang", "hang"]], "delay", () => {});
  const delay = h("input", { type: "number", id: "drill-delay", min: 1, max: 60000, value: 500 });
  const seconds = h("input", { type: "number", id: "drill-seconds", min: 1, max: 600, value: 30 });
  for (const control of [kind, delay, seconds]) control.setAttribute("data-keep-value", "");
  return h("details", { "data-keep": "drill" }, h("summary", {}, "Drill ", h("span", { class: "soft small" }, "a fault on purpose, for all callers of this process")),
    h("form", { class: "row", "aria-label": "Drill", onsubmit: (event) => { event.preventDefault(); act(engine, "drill", { kind: kind.value, delayMs: Number(delay.value), seconds: Number(seconds.value) }); } },
      field("Fault", kind), field("Delay (ms)", delay), field("For (seconds)", seconds), styled(h("button", { id: "act-drill" }, "Begin"), { alignSelf: "flex-end", minHeight: "38px" })));
}

/** An advertisement flattened: `retrieve.modes: dense`, `filter.fields.lang: keyword`. */
function flat(value, path, found) {
  if (Array.isArray(value)) value.forEach((one) => flat(one, path, found));
  else if (value && typeof value === "object") {
    if (!Object.keys(value).length && path) found.add(path);
    for (const [name, inner] of Object.entries(value)) flat(inner, path ? `${path}.${name}` : name, found);
  } else found.add(value === true ? path : `${path}: ${value}`);
  return found;
}

function difference(engine) {
  if (!engine.advertisement) return h("p", { class: "state inset" }, "No handshake has succeeded yet.");
  const own = flat(engine.advertisement, "", new Set());
  const merged = flat(known.merged, "", new Set());
  const group = (title, items, kind) => (items.length ? [h("p", { class: "small soft" }, title), h("p", { class: "chips" }, items.slice(0, 200).map((text) => chip(text, kind)))] : null);
  return h("div", { id: "advertisement" }, group("In both", [...own].filter((text) => merged.has(text)), ""), group("Only this engine", [...own].filter((text) => !merged.has(text)), "own"), group("Only the federation", [...merged].filter((text) => !own.has(text)), "lack"));
}

function offersCard() {
  const names = Object.keys(known.merged).sort();
  if (!names.length) return h("section", { class: "card" }, h("p", { class: "state inset" }, "No engine has advertised anything yet."));
  return h("section", { class: "card" }, h("h2", {}, "Who offers what"), table("Who offers what", [["Engine"], ...names.map((name) => [visible(name)])],
    known.engines.map((engine) => h("tr", {}, h("th", { scope: "row" }, visible(engine.id)), names.map((name) => h("td", {}, engine.advertisement && name in engine.advertisement ? ["●", hidden("yes")] : h("span", { class: "soft" }, "–", hidden("no")))))), "tall"));
}

// ---------------------------------------------------------------- view: overlap

function viewOverlap() {
  main.replaceChildren(h("p", { class: "state" }, "Loading…"));
  refreshing(async (current) => { const told = await read("/admin/overlap"); if (current()) redraw(overlapParts(told)); });
}

const MATRIX_ENGINES = 60; // a matrix of 300 engines has 90,000 cells, which no browser draws every few seconds

function overlapParts(told) {
  const head = h("div", { class: "head" }, h("h1", {}, "Overlap"), h("p", {}, "How much engines agree, and who earns their place. Counts over recent answers; no query and no text is kept."));
  if (!told.hits) return [head, h("div", { class: "state" }, h("h2", {}, "Nothing to compare yet"), h("p", {}, "As soon as questions are answered, shared hits are counted here."))];
  const shown = told.engines.length > MATRIX_ENGINES ? [...told.engines].sort((a, b) => b.given - a.given).slice(0, MATRIX_ENGINES) : told.engines;
  const pairs = new Map(told.pairs.map(([a, b, shared]) => [`${a}\n${b}`, shared]));
  const most = Math.max(1, ...pairs.values());
  const cell = (a, b) => {
    if (a.id === b.id) return h("td", { class: "self" }, String(a.given));
    const shared = pairs.get(a.id < b.id ? `${a.id}\n${b.id}` : `${b.id}\n${a.id}`) || 0;
    return styled(h("td", { title: `${visible(a.id)} and ${visible(b.id)}: ${shared} shared` }, String(shared)), { background: shared ? `color-mix(in srgb, var(--accent) ${Math.round(shared / most * 30)}%, var(--paper))` : "" });
  };
  const matrix = h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Shared hits" }, h("table", { class: "matrix" }, h("caption", { class: "hidden-label" }, "Hits that two engines both gave"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, hidden("Engine")), shown.map(({ id }) => h("th", { scope: "col", title: visible(id) }, visible(id))))),
    h("tbody", {}, shown.map((a) => h("tr", {}, h("th", { scope: "row" }, visible(a.id)), shown.map((b) => cell(a, b)))))));
  const rows = [...told.engines].sort((a, b) => b.share - a.share).map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.id)),
    h("td", {}, h("div", { class: "share", "aria-hidden": "true" }, styled(h("i", {}), { width: `${one.share * 100}%`, background: hue(one.id) }))), h("td", { class: "num" }, percent(one.share)), h("td", { class: "num" }, String(one.given)), h("td", { class: "num" }, String(one.alone)), h("td", { class: "num" }, String(one.answered))));
  return [head,
    h("section", { class: "card" }, h("h2", {}, "Share of the final hits ", h("span", { class: "soft small" }, `${count(told.hits, "hit")} of ${count(told.answers, "answer")}`)), table("Share of the final hits", [["Engine"], [""], ["Share", "num"], ["Gave", "num"], ["Alone", "num"], ["Answers", "num"]].map(([text, kind]) => [text || hidden("Bar"), kind]), rows, "tall")),
    h("section", { class: "card" }, h("h2", {}, "Shared hits ", h("span", { class: "soft small" }, shown.length < told.engines.length ? `the ${MATRIX_ENGINES} engines that gave most; the diagonal is what an engine gave in all` : "the diagonal is what an engine gave in all")), matrix)];
}

// ---------------------------------------------------------------- view: sources and shadows

function viewSources() {
  main.replaceChildren(h("p", { class: "state" }, "Loading…"));
  refreshing(async (current) => {
    const [sources, shadows] = await Promise.all([read("/admin/sources"), read("/admin/shadows")]);
    if (current()) redraw([h("div", { class: "head" }, h("h1", {}, "Sources and shadows"), h("p", {}, "Where engines are configured, and engines that are compared without affecting answers.")), sourcesCard(sources), shadowsCard(shadows)]);
  });
}

function sourcesCard(told) {
  const head = h("h2", {}, "Engine sources");
  if (!told.sources.length) return h("section", { class: "card", "aria-label": "Engine sources" }, head, h("p", { class: "state inset" }, "All engines are from the registry file. Set registry.sources to let teams keep files of their own."));
  const rows = told.sources.map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.name), h("div", { class: "soft small mono" }, visible(one.origin))),
    h("td", {}, chip(one.up ? "in force" : "faulty", one.up ? "good" : "bad")), h("td", { class: "wrap" }, visible(one.engines.join(", ")) || "none"),
    h("td", { class: "wrap" }, [...one.faults, ...one.documents.flatMap((file) => file.faults.map((fault) => `${file.name}: ${fault}`))].map((fault) => h("p", { class: "small" }, visible(fault))))));
  return h("section", { class: "card", "aria-label": "Engine sources" }, head, table("Engine sources", [["Source"], ["State"], ["Engines"], ["Faults"]], rows, "tall"),
    told.warming.length ? h("p", { class: "soft small" }, "Not yet reached since their last change: ", visible(told.warming.join(", "))) : null);
}

const VERDICTS = { better: "good", worse: "bad", "no difference": "", "too few": "", unknown: "" };

function shadowsCard(told) {
  const head = h("h2", {}, "Shadow engines");
  if (!told.shadows.length) return h("section", { class: "card", "aria-label": "Shadow engines" }, head, h("p", { class: "state inset" }, "None. Set shadow in an engine's registry entry to compare it with live traffic."));
  const verdict = (one) => (one.verdict ? [chip(one.verdict, VERDICTS[one.verdict]), one.p === null || one.p === undefined ? null : h("span", { class: "soft small" }, ` p ${one.p.toFixed(3)}`)] : "–");
  const rows = told.shadows.map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.id)), h("td", { class: "num" }, String(one.calls)), h("td", { class: "num" }, String(one.failures)),
    h("td", { class: "num" }, percent(one.fused.overlap)), h("td", { class: "num" }, one.fused.rbo === null ? "–" : one.fused.rbo.toFixed(2)), h("td", {}, verdict(one.feedback["nDCG@10"])), h("td", { class: "num" }, String(one.feedback.n))));
  return h("section", { class: "card", "aria-label": "Shadow engines" }, head, table("Shadow engines", [["Engine"], ["Calls", "num"], ["Failed", "num"], ["Overlap of top 10", "num"], ["RBO", "num"], ["By feedback (nDCG@10)"], ["Judged answers", "num"]], rows, "tall"));
}

// ---------------------------------------------------------------- view: selection and cache

function viewSavings() {
  main.replaceChildren(h("p", { class: "state" }, "Loading…"));
  refreshing(async (current) => {
    const [selection, cache] = await Promise.all([read("/admin/selection"), read("/admin/cache")]);
    if (current()) redraw([h("div", { class: "head" }, h("h1", {}, "Selection and cache"), h("p", {}, "Engine calls that were not needed, in this process.")), selectionCard(selection), cacheCard(cache)]);
  });
}

const factList = (pairs) => h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(value)))));

function selectionCard(told) {
  const head = h("h2", {}, "Engine selection ", chip(told.mode, told.mode === "off" ? "" : "own"));
  if (told.mode === "off") return h("section", { class: "card", "aria-label": "Engine selection" }, head, h("p", { class: "state inset" }, "Every engine is asked. Set select.mode to report to measure how many would be enough."));
  const rarely = told.engines.slice(0, 20);
  const asked = told.engines.length ? table("Asked least", [["Engine"], ["Asked", "num"], ["Learned from", "num"]], rarely.map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.id)), h("td", { class: "num" }, String(one.asked)), h("td", { class: "num" }, String(one.learned)))), "tall") : h("p", { class: "soft" }, "No engine has been asked yet.");
  return h("section", { class: "card", "aria-label": "Engine selection" }, head, factList([["Calls made", told.calls], ["Calls saved", told.saved]]),
    told.views.map(coverageOf), h("h3", {}, "Engines asked least"), asked);
}

/** How many of the engines that one group of callers sees would have given which share of the good hits. */
function coverageOf(view) {
  const title = `Coverage${view.engines.join() === "*" ? "" : ` for callers that see ${view.engines.join(", ")}`}`;
  const curve = view.coverage.map((share, place) => [place + 1, share]).slice(0, 30);
  return [h("h3", {}, visible(title)), factList([["Engines asked (n)", view.n], ["Audits", view.audits], ["Questions", view.questions]]),
    view.audits ? table(title, [["Engines asked", "num"], ["Share of good hits", "num"], [hidden("Bar")]], curve.map(([number, share]) => h("tr", {}, h("th", { scope: "row", class: "num" }, String(number)), h("td", { class: "num" }, percent(share)), h("td", {}, h("div", { class: "share", "aria-hidden": "true" }, styled(h("i", {}), { width: `${share * 100}%` }))))), "tall") : h("p", { class: "soft" }, "No audits yet, so it is not known how many engines are enough.")];
}

function cacheCard(told) {
  const head = h("h2", {}, "Answer cache ", chip(told.enabled ? "on" : "off", told.enabled ? "own" : ""));
  const all = Object.values(told.requests).reduce((sum, many) => sum + many, 0);
  if (!told.enabled && !all) return h("section", { class: "card", "aria-label": "Answer cache" }, head, h("p", { class: "state inset" }, "Every request asks the engines. Set cache.enabled to true to share answers of equal requests."));
  const saved = told.requests.hit + told.requests.joined + told.requests.stale;
  return h("section", { class: "card", "aria-label": "Answer cache" }, h("div", { class: "bar-head" }, head, h("button", { type: "button", id: "purge", onclick: purge }, "Forget all cached answers")),
    factList([["Requests", all], ["Without engine calls", all ? percent(saved / all) : "–"], ...Object.entries(told.requests), ["Kept answers", told.entries], ["Memory", `${(told.bytes / 1048576).toFixed(1)} of ${(told.maxBytes / 1048576).toFixed(0)} MiB`], ["Oldest answer served stale", told.oldestStaleMs ? age(told.oldestStaleMs) : "none"], ["Kept in", told.shared ? "Redis, for all processes" : "this process"]]));
}

async function purge() {
  try { say((await send("/admin/actions", { action: "purge" })).said); route(); } catch (fault) { if (fault.status === 401) askForKey(fault); else say(fault.message); }
}

// ---------------------------------------------------------------- view: tenants and settings

async function viewSettings() {
  main.replaceChildren(h("p", { class: "state" }, "Loading…"));
  try {
    const told = await read("/admin/settings");
    if (!location.hash.startsWith("#/settings")) return;
    main.replaceChildren(h("div", { class: "head" }, h("h1", {}, "Tenants and settings"), h("p", {}, "What holds now, and where it comes from. Secrets are masked.")), reloadCard(told), tenantsCard(told), settingsCard(told));
  } catch (fault) { failed(fault); }
}

function reloadCard({ reload, readiness }) {
  return h("section", { class: "card" }, h("h2", {}, "This gateway"), h("p", { class: "row" }, chip(readiness || "ready", readiness ? "warn" : "good"),
    reload === null ? h("span", { class: "soft" }, "Its files are read at the start only.") : reload.failure ? chip("files are faulty", "bad") : chip("files are in force", "good")),
    reload && reload.failure ? h("p", { class: "fault-line" }, visible(reload.failure)) : null);
}

function tenantsCard({ auth, tenants }) {
  if (!tenants.length) return h("section", { class: "card" }, h("h2", {}, "Tenants"), h("p", { class: "state inset" }, auth.includes("none") ? "Callers are not told apart (auth.mode is none): everybody sees every engine." : "No tenant is declared."));
  const rows = tenants.map((one) => h("tr", {}, h("th", { scope: "row" }, visible(one.id)), h("td", {}, one.roles.map((role) => [chip(role, role === "admin" ? "own" : ""), " "])),
    h("td", { class: "wrap" }, one.sees.length ? visible(one.sees.join(", ")) : h("span", { class: "soft" }, "no engine"), h("div", { class: "soft small" }, visible(one.patterns.join(" ")))),
    h("td", {}, one.limits.length ? visible(one.limits.map(([name, value]) => `${name} ${value}`).join(", ")) : h("span", { class: "soft" }, "none")),
    h("td", {}, one.keys.map((key) => [chip(key.expires ? `${key.id} until ${key.expires}` : key.id), " "]))));
  return h("section", { class: "card" }, h("h2", {}, "Tenants ", h("span", { class: "soft small" }, visible(auth.join(", ")))), table("Tenants", [["Tenant"], ["Roles"], ["Sees"], ["Limits"], ["Keys"]], rows, "tall"));
}

function settingsCard({ settings }) {
  const body = h("tbody", {});
  const draw = () => {
    const wanted = document.getElementById("wanted") ? document.getElementById("wanted").value.trim().toLowerCase() : "";
    const only = document.getElementById("changed") ? document.getElementById("changed").checked : false;
    const rows = settings.filter((one) => one.key.includes(wanted) && (!only || one.source !== "default"));
    body.replaceChildren(...(rows.length ? rows.map((one) => h("tr", {}, h("th", { scope: "row", class: "mono" }, one.key), h("td", { class: "mono wrap" }, visible(JSON.stringify(one.value))), h("td", {}, chip(one.source, one.source === "default" ? "" : "own")), h("td", { class: "mono soft" }, one.source === "default" ? "" : visible(JSON.stringify(one.default)))))
      : [h("tr", {}, h("td", { colspan: 4, class: "soft" }, "No setting is called so."))]));
  };
  draw();
  return h("section", { class: "card" }, h("div", { class: "bar-head" }, h("h2", {}, "Settings"), h("div", { class: "row" },
    h("label", { class: "check" }, h("input", { type: "checkbox", id: "changed", onchange: draw }), "Only what differs"), h("input", { type: "search", id: "wanted", "aria-label": "Find a setting", placeholder: "find a setting", oninput: draw, class: "find" }))),
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Settings" }, h("table", {}, h("caption", { class: "hidden-label" }, "Settings"), h("thead", {}, h("tr", {}, ["Setting", "Value", "From", "Default"].map((text) => h("th", { scope: "col" }, text)))), body)));
}

// ---------------------------------------------------------------- keys, faults, and the way between views

function askForKey(fault) {
  const box = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, box.value.trim());
    start();
  };
  stopRefreshing();
  const tried = sessionStorage.getItem(KEY);
  const lead = fault.status === 403 ? visible(fault.message) : tried ? "That key was not accepted." : "This gateway knows its callers by keys. Yours is kept for this tab only.";
  main.replaceChildren(h("div", { class: "state" }, h("h1", {}, fault.status === 403 ? "Not allowed" : "A key is needed"), h("p", { role: tried ? "alert" : null }, lead),
    h("form", { class: "row", onsubmit: submit }, styled(field("Key of a tenant with the role admin", box), { flex: "1 1 260px", textAlign: "left" }), styled(h("button", { class: "primary" }, "Open"), { alignSelf: "flex-end" }))));
  document.getElementById("forget").hidden = !tried;
  box.focus();
}

function failed(fault) {
  if (!(fault instanceof Refused)) throw fault;
  if (fault.status === 401 || fault.status === 403) { askForKey(fault); return; }
  main.replaceChildren(h("div", { class: "state fault", role: "alert" }, h("h1", {}, "It did not work"), h("p", {}, visible(fault.message)),
    h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: start }, "Try again"))));
}

/** Whether a pointer is down: what is drawn anew between press and release would never be clicked. */
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => { pressed = false; }), true);
addEventListener("blur", () => { pressed = false; }); // of the window: let go elsewhere

let timer = null;
function stopRefreshing() { clearInterval(timer); timer = null; }
/** Load now, and again every few seconds as long as this view is the one that is seen. */
function refreshing(load) {
  stopRefreshing();
  let going = false;
  const mine = timer = setInterval(tick, REFRESH_MS);
  let shown = false;
  async function tick() {
    if (document.hidden || going) return;
    going = true;
    try { await load(() => mine === timer && !pressed); shown = true; } catch (fault) {
      if (!(fault instanceof Refused)) throw fault;
      if (mine === timer) { if (shown && fault.status !== 401 && fault.status !== 403) say(fault.message); else failed(fault); }
    } finally { going = false; }
  }
  tick();
}

const VIEWS = { federation: viewFederation, sources: viewSources, savings: viewSavings, ask: viewAsk, explain: viewExplain, engines: viewEngines, overlap: viewOverlap, settings: viewSettings };
const TITLES = { federation: "Federation", sources: "Sources and shadows", savings: "Selection and cache", ask: "Ask", explain: "Explain", engines: "Engines", overlap: "Overlap", settings: "Tenants and settings" };

function route() {
  const [path, said] = location.hash.replace(/^#\//, "").split(/\?(.*)/s);
  const view = path in VIEWS ? path : "federation";
  const told = new URLSearchParams(said || "");
  if ((view === "ask" || view === "explain") && told.has("q")) fromHash(told);
  stopRefreshing();
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]} – rcp-gateway console`;
  VIEWS[view](told);
}

async function start() {
  try { await learn(); } catch (fault) { failed(fault); return; }
  route();
  followHealth();
}

document.getElementById("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  asked = null;
  health = null;
  drawHealth();
  document.getElementById("who").textContent = "";
  start();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden && health) followHealth(); });
start();
