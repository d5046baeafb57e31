// SPDX-License-Identifier: Apache-2.0
// Reads netvmd's counters once a second and shows them. Text from netvmd is only ever set as text (textContent), never
// as HTML: an NF may call its counters anything.
import { capturer } from "/web/capture.js";
import { Graph } from "/web/graph.js";
import { tracer } from "/web/trace.js";

const KEY = "netvm-token";
// That there is a session: its cookie is not for scripts.
const USER = "netvm-user";
const byId = (id) => document.getElementById(id);
// On other machines a user logs in, or the browser has a certificate; on this one there is a token.
const hasUsers = location.protocol === "https:";
const login = byId(hasUsers ? "password-login" : "login");
let token = sessionStorage.getItem(KEY) || "";
if (location.hash.startsWith("#token=")) {
  token = decodeURIComponent(location.hash.slice(7));
  sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname + location.search);
}

/** An element with attributes and children; strings become text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** A rate with an SI prefix. */
export function rate(value) {
  for (const [scale, prefix] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= scale) return (value / scale).toFixed(2) + prefix;
  }
  return value.toFixed(0);
}
const count = (value) => Number(value).toLocaleString("en");

/** The reply to a request, if it is no error. */
export async function send(path, body, signal) {
  const headers = token ? { Authorization: "Bearer " + token } : {};
  const options = body ? { method: "POST", body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } } : { headers };
  const reply = await fetch(path, { ...options, signal });
  if (reply.status === 401) throw Object.assign(new Error("no token"), { token: true });
  if (!reply.ok) throw new Error((await reply.json()).message || "HTTP status " + reply.status);
  return reply;
}

export async function ask(path, body) {
  return (await send(path, body)).json();
}

const state = { stats: null, before: null, config: null, policy: null, routers: [], status: null, events: [], last: 0, tab: "graph", turn: 0 };
const graph = new Graph(byId("canvas"), showDetail);

/** Rates per second between the last two readings: of(stats) is the counter. */
export function perSecond(of) {
  const { stats, before } = state;
  if (!before) return 0;
  const seconds = stats.uptime_s - before.uptime_s;
  const difference = of(stats) - of(before);
  return seconds > 0 && difference > 0 ? difference / seconds : 0;
}
const sum = (values) => values.reduce((all, one) => all + one, 0);
const dropsOf = (stats, place, name) => sum(Object.values((stats.drops[place] || {})[name] || {}));
const byName = (list) => new Map(list.map((one) => [one.name, one]));

/** What the graph, the tables and the details show: rates by kind and name. */
function model() {
  const { stats, before, policy } = state;
  const seconds = before ? stats.uptime_s - before.uptime_s : 0;
  const known = before ? { ports: byName(before.ports), chains: byName(before.chains) } : { ports: new Map(), chains: new Map() };
  const speed = (now, old) => (seconds > 0 && now > old ? (now - old) / seconds : 0);
  const ports = new Map(stats.ports.map((port) => {
    const old = known.ports.get(port.name) || port;
    const drops = (s) => dropsOf(s, "ports", port.name);
    return [port.name, {
      ...port,
      rx: speed(port.rx_packets, old.rx_packets), tx: speed(port.tx_packets, old.tx_packets),
      rxBits: 8 * speed(port.rx_bytes, old.rx_bytes), txBits: 8 * speed(port.tx_bytes, old.tx_bytes),
      dropped: speed(drops(stats), before ? drops(before) : drops(stats)),
    }];
  }));
  const chains = new Map(stats.chains.map((chain) => {
    const old = known.chains.get(chain.name) || chain;
    const drops = (one) => one.dropped_at_entry + one.dropped_inside;
    return [chain.name, { ...chain, entered: speed(chain.entered, old.entered), left: speed(chain.left, old.left), dropped: speed(drops(chain), drops(old)) }];
  }));
  const roles = new Map();
  for (const nf of stats.nfs) {
    const role = roles.get(nf.role) || { role: nf.role, group: nf.group, ring: 0, running: 0, instances: [], received: 0 };
    role.instances.push(nf);
    role.running += nf.state === "running";
    role.ring = Math.max(role.ring, ...nf.threads.map((thread) => thread.ring_percent), 0);
    role.cycles = nf.threads.length ? nf.threads[0].cycles_per_packet : 0;
    roles.set(nf.role, role);
  }
  for (const role of roles.values()) {
    role.received = perSecond((s) => (s.roles.find((one) => one.role === role.role) || {}).received || 0);
  }
  const rules = (policy ? policy.rules : []).map((rule) => ({ ...rule, rate: (ruleCounts.get(rule.id) || { rate: 0 }).rate }));
  return { ports, chains, roles, rules, routers: state.routers, config: state.config, stats, before };
}

/** Where packets can be captured, as netvmd names it, and in words. */
function places() {
  const { ports, chains, roles } = state.stats;
  return [
    ...ports.map(({ name }) => ["port:" + name, "port " + name]),
    ...chains.flatMap(({ name, hops }) => hops.map((role, n) => [`chain:${name}:${n + 1}`, `chain ${name}, hop ${n + 1} (${role})`])),
    ...roles.map(({ role }) => ["nf:" + role, "NF " + role]),
    ...state.routers.map(({ name }) => ["router:" + name, "router " + name]),
  ];
}

/** The last count of each rule, when it was read (by netvmd's clock), and its rate. */
const ruleCounts = new Map();
function noteRules(policy, now) {
  for (const { id, packets } of policy.rules) {
    const old = ruleCounts.get(id);
    const speed = old && now > old.at ? Math.max(0, (packets - old.packets) / (now - old.at)) : 0;
    ruleCounts.set(id, { packets, at: now, rate: speed });
  }
}

/** Packets that the interfaces of routers have sent, when they were read, and their rates. */
const sentCounts = new Map();
function noteRouters(routers) {
  const now = performance.now() / 1000;
  for (const router of routers) {
    for (const one of router.interfaces) {
      const key = router.name + " " + one.name, old = sentCounts.get(key);
      one.txRate = old && now > old.at ? Math.max(0, (one.tx_packets - old.packets) / (now - old.at)) : 0;
      sentCounts.set(key, { packets: one.tx_packets, at: now });
    }
  }
}

function showDetail(title, facts) {
  const detail = byId("detail");
  detail.querySelector("h2").textContent = title;
  detail.querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
  detail.hidden = false;
}
byId("close").addEventListener("click", () => { byId("detail").hidden = true; graph.chosen = null; });

function table(title, heads, rows) {
  const cell = (name, head, value) => make(name, head.startsWith(">") ? { class: "n" } : {}, value);
  const line = (row) => make("tr", {}, ...row.map((value, n) => cell("td", heads[n], String(value))));
  const head = make("tr", {}, ...heads.map((one) => cell("th", one, one.replace(">", ""))));
  return [make("h2", {}, title), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map(line)))];
}

function drawTables(view) {
  const drops = [];
  for (const place of ["ports", "chains", "nfs"]) {
    for (const [name, reasons] of Object.entries(view.stats.drops[place])) {
      for (const [reason, packets] of Object.entries(reasons)) {
        const speed = perSecond((s) => ((s.drops[place] || {})[name] || {})[reason] || 0);
        drops.push([place.slice(0, -1), name, reason, rate(speed), count(packets)]);
      }
    }
  }
  const nfs = view.stats.nfs.map((nf) => [
    nf.role, nf.instance, nf.state, nf.group, Math.max(0, ...nf.threads.map((t) => t.ring_percent)).toFixed(0) + " %",
    (nf.threads[0] ? nf.threads[0].cycles_per_packet : 0).toFixed(0), nf.restarts, nf.last_exit || "-"]);
  const own = view.stats.nfs.flatMap((nf) => Object.entries(nf.counters).map(([name, value]) => [nf.role, nf.instance, name, count(value)]));
  byId("tables").replaceChildren(
    ...table("Workers", [">Worker", ">Core", ">Busy"], view.stats.workers.map((w) => [w.id, w.core, w.busy_percent.toFixed(1) + " %"])),
    ...table("Ports", ["Port", "Link", ">RX/s", ">RX bit/s", ">TX/s", ">TX bit/s", ">Dropped/s"], [...view.ports.values()].map((p) =>
      [p.name, p.link ? "up" : "down", rate(p.rx), rate(p.rxBits), rate(p.tx), rate(p.txBits), rate(p.dropped)])),
    ...table("Chains", ["Chain", "Hops", "Output", "State", ">Entered/s", ">Left/s", ">Dropped/s"], [...view.chains.values()].map((c) =>
      [c.name, c.hops.join(" → "), c.output || "-", c.state, rate(c.entered), rate(c.left), rate(c.dropped)])),
    ...table("NFs", ["NF", ">#", "State", "Group", ">Ring", ">Cycles/packet", ">Restarts", "Last exit"], nfs),
    ...table("Counters of NFs", ["NF", ">#", "Counter", ">Value"], own),
    ...table("Drops", ["At", "Name", "Reason", ">Dropped/s", ">Packets"], drops),
    ...table("Memory", ["Group", ">Node", ">Free", ">In engine", ">In NFs"], view.stats.groups.flatMap((g) =>
      g.regions.map((r) => [g.name, r.node, count(r.free), count(r.in_engine), count(r.in_nfs)]))),
  );
}

function drawEvents() {
  const tones = { info: "good", warning: "warn", error: "bad" };
  const line = (event) => make("tr", {},
    make("td", {}, new Date(event.at * 1000).toLocaleTimeString()),
    make("td", { class: tones[event.severity] || "" }, event.kind.replaceAll("_", " ")), make("td", {}, event.message));
  byId("events").replaceChildren(make("h2", {}, "Events"), make("table", {}, make("tbody", {}, ...state.events.slice(-300).reverse().map(line))));
}

function draw() {
  if (!state.stats || !state.config) return;
  const view = model();
  const total = (of) => rate(sum([...view.ports.values()].map(of)));
  const dropped = perSecond((s) => s.drops.total);
  byId("summary").textContent = `rx ${total((p) => p.rx)}/s · tx ${total((p) => p.tx)}/s · dropped ${rate(dropped)}/s · ` +
    state.stats.workers.map((w) => `worker ${w.id} ${w.busy_percent.toFixed(0)} %`).join(" · ");
  const problems = state.status ? state.status.problems : [];
  byId("problem").hidden = problems.length === 0;
  byId("problem").textContent = problems.join("\n");
  if (state.tab === "graph") graph.draw(view, byId("filter").value);
  if (state.tab === "tables") drawTables(view);
  if (state.tab === "events") drawEvents();
  if (state.tab === "trace") tracer(byId("trace"), state.stats.ports.map((port) => port.name));
  if (state.tab === "capture") capturer(byId("capture"), places());
}

async function read() {
  if (state.turn % 5 === 0) {
    [state.config, state.routers, state.status] =
      await Promise.all([ask("/v1/config").then((reply) => reply.config), ask("/v1/routers"), ask("/v1/status")]);
    noteRouters(state.routers);
  }
  const [stats, policy, events] = await Promise.all([ask("/v1/stats"), ask("/v1/policy"), ask("/v1/events?after=" + state.last)]);
  noteRules(policy, stats.uptime_s);
  [state.before, state.stats, state.policy] = [state.stats, stats, policy];
  // netvmd has started again.
  if (state.before && stats.uptime_s < state.before.uptime_s) [state.before, state.last, state.turn] = [null, 0, -1];
  state.events = state.events.concat(events).slice(-1000);
  if (events.length) state.last = events[events.length - 1].number;
  state.turn += 1;
}

async function turn() {
  let pause = 1000;
  if (!document.hidden) {
    try {
      await read();
      login.hidden = true;
      byId("views").hidden = false;
      byId("logout").hidden = !sessionStorage.getItem(USER);
      const begun = performance.now();
      draw();
      // For the tests: milliseconds of the first and of the fastest drawing. Others may have waited for a processor.
      const took = (performance.now() - begun).toFixed(1);
      const times = document.body.dataset;
      times.first ||= took;
      times.draw = Math.min(took, times.draw ?? took);
    } catch (error) {
      login.hidden = !error.token;
      byId("views").hidden = Boolean(error.token) || !state.stats;
      byId("summary").textContent = error.token ? (hasUsers ? "log in" : "needs a token") : "netvmd does not answer: " + error.message;
      if (error.token) return;
      pause = 3000;
    }
  }
  setTimeout(turn, pause);
}

byId("password-login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [name, password] = ["user", "password"].map((id) => byId(id).value);
  byId("refusal").textContent = "";
  try {
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch("/web/login", { method: "POST", headers, body: JSON.stringify({ name, password }) });
    const body = await reply.json();
    if (!reply.ok) throw new Error(body.message);
    byId("password").value = "";
    sessionStorage.setItem(USER, name);
    turn();
  } catch (error) {
    byId("refusal").textContent = error.message;
  }
});
byId("logout").addEventListener("click", async () => {
  await fetch("/web/logout", { method: "POST" });
  sessionStorage.removeItem(USER);
  location.reload();
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  sessionStorage.setItem(KEY, token);
  turn();
});
export function choose(tab) {
  state.tab = tab;
  for (const button of byId("tabs").children) button.setAttribute("aria-pressed", String(button.dataset.tab === tab));
  for (const section of byId("views").children) section.hidden = section.id !== tab;
  draw();
}
byId("tabs").addEventListener("click", (event) => { if (event.target.dataset.tab) choose(event.target.dataset.tab); });
byId("filter").addEventListener("input", draw);
const wanted = new URLSearchParams(location.search).get("tab");
if (wanted && byId(wanted)) choose(wanted);
turn();
