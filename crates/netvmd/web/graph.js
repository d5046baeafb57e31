// SPDX-License-Identifier: Apache-2.0
// The graph: ports on the left, rules, chains with their NFs and routers in the middle, ports again on the right where
// packets leave. Nodes are made when the configuration changes; a reading only changes texts, widths and classes.
import { rate } from "/web/app.js";

const NS = "http://www.w3.org/2000/svg";
const ROW = 26, GAP = 8, HOP = 118;
const X = { port: 0, rule: 262, middle: 490, out: 0 };
const WIDTH = { port: 212, rule: 190 };

function svg(name, attributes, ...children) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const list = (value) => (value === undefined ? [] : Array.isArray(value) ? value : [value]);

/** Sets a text only if it differs: a layout that does not change costs nothing. */
function write(element, text) { if (element.textContent !== text) element.textContent = text; }
function set(element, name, value) { if (element.getAttribute(name) !== value) element.setAttribute(name, value); }

/** Where a rule, a port's default or a chain's end sends packets: [kind, name]; null: drop, or the ingress port. */
function target(action) {
  if (!action || action === "ingress") return null;
  if (typeof action === "string") return ["out", action];
  if (action.chain) return ["chain", action.chain];
  if (action.out) return ["out", action.out];
  if (action.router) return ["router", action.router];
  if (action.normal) return ["switch", "L2 switch"];
  return null;
}
const isSwitched = (action) => (target(action) || [])[0] === "switch";
/** The name of a rule: without one, its number, as in `netvm policy show`. */
const ruleName = (rule, n, view) => rule.name || (view.rules[n] ? "rule " + view.rules[n].id : "rule");

/** Whether a rule decides where packets go: others only count, police or mirror them. */
const decides = (rule) => ["chain", "out", "router", "normal", "allow", "drop", "reject"].some((action) => rule[action]);

export class Graph {
  constructor(canvas, show) {
    this.canvas = canvas;
    this.show = show;
    this.key = null;
    this.chosen = null;
  }

  draw(view, filter) {
    const key = JSON.stringify([view.config.port, view.config.rule, view.config.chain, view.config.router, view.rules.map((r) => r.id), filter]);
    if (key !== this.key) this.build(view, filter.trim().toLowerCase());
    this.key = key;
    for (const update of this.updates) update(view);
    if (this.chosen) this.chosen(view);
  }

  build(view, filter) {
    this.updates = [];
    this.places = new Map();
    this.edges = svg("g");
    const nodes = svg("g");
    const { config } = view;
    const hit = (...words) => !filter || words.some((word) => String(word).toLowerCase().includes(filter));
    const chains = list(config.chain).filter((chain) => hit(chain.name, ...chain.hops));
    const chainNames = new Set(chains.map((chain) => chain.name));
    const rules = list(config.rule).map((rule, n) => ({ rule, n })).filter(({ rule, n }) =>
      hit(rule.name || "", view.rules[n] ? view.rules[n].text : "", ...list(rule.from)) || chainNames.has(rule.chain));
    const linked = new Set([...rules.flatMap(({ rule }) => [...list(rule.from), rule.out]), ...chains.map((chain) => (target(chain.output) || [])[1])]);
    const ports = list(config.port).filter((port) => hit(port.name) || (filter && linked.has(port.name)));
    const routers = list(config.router).filter((router) => hit(router.name));
    const hasSwitch = list(config.port).some((port) => isSwitched(port.forward)) || list(config.rule).some(isSwitched) ||
      list(config.chain).some((chain) => isSwitched(chain.output));
    X.out = X.middle + HOP * Math.max(1, ...chains.map((chain) => chain.hops.length)) + 132;

    this.column(nodes, X.port, "ports", ports, (port, y) => this.port(nodes, port.name, X.port, y, "port"));
    this.column(nodes, X.rule, "rules", rules, ({ rule, n }, y) => this.rule(nodes, { rule, n, name: ruleName(rule, n, view) }, y));
    const middle = [...chains.map((chain) => ["chain", chain]), ...(hasSwitch ? [["switch", { name: "L2 switch" }]] : []), ...routers.map((router) => ["router", router])];
    this.column(nodes, X.middle, "chains, NFs, routers", middle, ([kind, item], y) =>
      kind === "chain" ? this.chain(nodes, item, y) : this.box(nodes, kind, item, y), ROW * 2);
    this.column(nodes, X.out, "out", ports, (port, y) => this.port(nodes, port.name, X.out, y, "out"));
    this.connect(config, rules, chains, routers);

    const height = 30 + Math.max(ports.length * (ROW + GAP), rules.length * (ROW + GAP), middle.length * (ROW * 2 + GAP)) + 10;
    const width = X.out + WIDTH.port + 4;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Graph of ports, rules, chains, NFs and routers" }, this.edges, nodes);
    this.canvas.replaceChildren(picture);
  }

  column(nodes, x, title, items, place, row = ROW) {
    nodes.append(svg("text", { x: x + 2, y: 16, class: "head" }, title));
    items.forEach((item, n) => place(item, 28 + n * (row + GAP)));
  }

  /** A node that shows `facts(view)` when it is chosen. */
  node(nodes, kind, box, title, facts) {
    const group = svg("g", { class: "node " + kind, tabindex: "0", role: "button", "aria-label": title, transform: `translate(${box.x} ${box.y})` });
    group.append(svg("rect", { class: "box", width: box.width, height: box.height, rx: 5 }));
    const choose = () => { this.chosen = (view) => this.show(title, facts(view)); if (this.last) this.chosen(this.last); };
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    this.updates.push((view) => { this.last = view; });
    nodes.append(group);
    this.places.set(box.key, box);
    return group;
  }

  port(nodes, name, x, y, side) {
    const box = { key: side + " " + name, x, y, width: WIDTH.port, height: ROW };
    const group = this.node(nodes, "port", box, "port " + name, (view) => {
      const port = view.ports.get(name) || {};
      const drops = Object.entries(view.stats.drops.ports[name] || {});
      return [["link", port.link ? "up" : "down"], ["kind", port.kind], ["driver", port.driver_mode], ["memory of", port.group || "the engine"],
        ["rx", rate(port.rx || 0) + "/s"], ["rx bit/s", rate(port.rxBits || 0)], ["tx", rate(port.tx || 0) + "/s"], ["tx bit/s", rate(port.txBits || 0)],
        ["rx packets", port.rx_packets], ["tx packets", port.tx_packets], ["rx dropped", port.rx_dropped], ...drops.map(([reason, n]) => ["dropped: " + reason, n])];
    });
    group.append(svg("text", { x: 7, y: 17 }, cut(name, 13)));
    const text = group.appendChild(svg("text", { x: WIDTH.port - 6, y: 17, "text-anchor": "end", class: "dim" }));
    this.updates.push((view) => {
      const port = view.ports.get(name);
      if (!port) return;
      group.classList.toggle("down", !port.link);
      const lost = side === "port" && port.dropped >= 1;
      write(text, rate(side === "port" ? port.rx : port.tx) + "/s" + (lost ? " ▼" + rate(port.dropped) : ""));
      set(text, "class", lost ? "bad" : "dim");
    });
  }

  rule(nodes, { rule, n, name }, y) {
    const box = { key: "rule " + n, x: X.rule, y, width: WIDTH.rule, height: ROW };
    const group = this.node(nodes, "rule", box, name, (view) => {
      const info = view.rules[n] || {};
      return [["rule", info.id], ["text", info.text], ["packets", info.packets], ["bytes", info.bytes], ["rate", rate(info.rate || 0) + "/s"]];
    });
    const ends = rule.drop ? " ✕" : rule.reject ? " ↩" : "";
    group.append(svg("text", { x: 7, y: 17 }, cut(name, 16) + ends));
    const text = group.appendChild(svg("text", { x: WIDTH.rule - 6, y: 17, "text-anchor": "end", class: "dim" }));
    this.updates.push((view) => write(text, rate((view.rules[n] || {}).rate || 0) + "/s"));
  }

  chain(nodes, chain, y) {
    const width = HOP * chain.hops.length + 96;
    const box = { key: "chain " + chain.name, x: X.middle, y, width, height: ROW * 2 };
    const group = this.node(nodes, "chain", box, "chain " + chain.name, (view) => {
      const info = view.chains.get(chain.name) || {};
      const drops = Object.entries(view.stats.drops.chains[chain.name] || {});
      return [["state", info.state], ["hops", (info.hops || []).join(" → ")], ["output", info.output || "-"], ["entered", rate(info.entered || 0) + "/s"],
        ["left", rate(info.left || 0) + "/s"], ["dropped at entry", info.dropped_at_entry], ["dropped inside", info.dropped_inside],
        ...drops.map(([reason, n]) => ["dropped: " + reason, n])];
    });
    group.append(svg("text", { x: 7, y: 18 }, cut(chain.name, 12)));
    const text = group.appendChild(svg("text", { x: 7, y: 40, class: "dim" }));
    this.updates.push((view) => {
      const info = view.chains.get(chain.name);
      if (!info) return;
      group.classList.toggle("down", info.state !== "up");
      write(text, info.dropped >= 1 ? "▼" + rate(info.dropped) + "/s" : rate(info.left) + "/s");
      set(text, "class", info.dropped >= 1 ? "bad" : "dim");
    });
    chain.hops.forEach((role, n) => this.nf(nodes, chain, role, n, { x: X.middle + 88 + n * HOP, y: y + 6 }));
  }

  nf(nodes, chain, role, n, { x, y }) {
    const box = { key: `nf ${chain.name} ${n}`, x, y, width: HOP - 10, height: ROW * 2 - 12 };
    const group = this.node(nodes, "nf", box, "NF " + role, (view) => {
      const info = view.roles.get(role);
      if (!info) return [["state", "gone"]];
      const own = info.instances.flatMap((nf) => Object.entries(nf.counters).map(([name, value]) => [`#${nf.instance} ${name}`, value]));
      const states = info.instances.map((nf) => `#${nf.instance} ${nf.state}${nf.pid ? ", process " + nf.pid : ""}${nf.last_exit ? ", last: " + nf.last_exit : ""}`);
      const violations = info.instances.flatMap((nf) => Object.entries(nf.violations).map(([name, value]) => ["violation: " + name, value]));
      return [["trust group", info.group], ["instances", states.join("; ")], ["received, of all chains", rate(info.received) + "/s"], ["fullest ring", info.ring.toFixed(0) + " %"],
        ["cycles per packet", (info.cycles || 0).toFixed(0)], ...violations, ...own];
    });
    group.append(svg("text", { x: 6, y: 16 }, cut(role, 14)));
    const bar = group.appendChild(svg("rect", { x: 6, y: 23, width: 0, height: 5, class: "fill" }));
    const text = group.appendChild(svg("text", { x: HOP - 16, y: 37, "text-anchor": "end", class: "dim" }));
    this.updates.push((view) => {
      const info = view.roles.get(role);
      const ring = info ? info.ring : 0;
      const rings = chain.hops.map((one) => (view.roles.get(one) || {}).ring || 0);
      group.classList.toggle("down", !info || info.running === 0);
      group.classList.toggle("slow", ring >= 25 && ring === Math.max(...rings));
      set(bar, "width", String(((HOP - 22) * Math.min(ring, 100)) / 100));
      set(bar, "class", "fill" + (ring >= 80 ? " bad" : ring >= 50 ? " warn" : ""));
      write(text, this.inChain(view, chain, n));
    });
  }

  /** What a hop of a chain receives. An NF counts the packets of all chains together, a chain those that enter it:
      behind the first hop of a chain whose NF serves others, too, it receives at most those. */
  inChain(view, chain, n) {
    const uses = list(view.config.chain).flatMap((one) => one.hops).filter((role) => role === chain.hops[n]).length;
    const info = view.chains.get(chain.name);
    if (uses === 1) return rate((view.roles.get(chain.hops[n]) || {}).received || 0) + "/s";
    if (!info) return "";
    return (n > 0 && info.dropped >= 1 ? "≤ " : "") + rate(info.entered) + "/s";
  }

  box(nodes, kind, item, y) {
    const box = { key: kind + " " + item.name, x: X.middle, y, width: 200, height: ROW * 2 };
    const group = this.node(nodes, kind, box, kind === "router" ? "router " + item.name : item.name, (view) => {
      const info = view.routers.find((router) => router.name === item.name);
      return info ? [["namespace", info.namespace], ["IPv4 routes", info.routes_v4], ["IPv6 routes", info.routes_v6], ["neighbours", info.neighbours],
        ["forwarded", info.forwarded], ["punted", info.punted], ["interfaces", info.interfaces.map((one) => `${one.name} on ${one.port}`).join(", ")]] : [];
    });
    group.append(svg("text", { x: 7, y: 18 }, cut(item.name, 24)));
    if (kind === "router") {
      const text = group.appendChild(svg("text", { x: 7, y: 40, class: "dim" }));
      this.updates.push((view) => {
        const info = view.routers.find((router) => router.name === item.name);
        write(text, info ? `${info.routes_v4 + info.routes_v6} routes` : "");
      });
    }
  }

  /** An edge whose width is the rate in the view: from the right side of one node to the left side of another. Several
      edges may share the packets that are counted together; `shared` says so in words. */
  edge(from, to, speed, shared) {
    const [a, b] = [this.places.get(from), this.places.get(to)];
    if (!a || !b) return;
    const [x1, y1, x2, y2] = [a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2];
    const bend = Math.max(24, (x2 - x1) / 2);
    const path = this.edges.appendChild(svg("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
    const title = path.appendChild(svg("title"));
    this.updates.push((view) => {
      const value = speed(view);
      set(path, "stroke-width", value > 0 ? Math.min(9, 1 + Math.log10(1 + value)).toFixed(1) : "1");
      set(path, "class", value > 0 ? "live" : "");
      write(title, rate(value) + "/s" + (shared || ""));
    });
  }

  connect(config, rules, chains, routers) {
    const ofRule = (n) => (view) => (view.rules[n] || {}).rate || 0;
    const received = (port) => (view) => (view.ports.get(port) || {}).rx || 0;
    const sent = (port) => (view) => (view.ports.get(port) || {}).tx || 0;
    for (const { rule, n } of rules) {
      const from = list(rule.from);
      // A rule counts the packets of all its ports together; none has more than the port received.
      const of = (port) => (view) => Math.min(ofRule(n)(view), received(port)(view));
      for (const port of from) this.edge("port " + port, "rule " + n, of(port), from.length > 1 ? ` at most, of ${from.length} ports together` : "");
      const to = target(rule);
      if (to) this.edge("rule " + n, to.join(" "), ofRule(n));
    }
    const rulesOf = (port) => list(config.rule).flatMap((rule, n) => (list(rule.from).includes(port) && decides(rule) ? [{ n, ports: list(rule.from).length }] : []));
    for (const port of list(config.port)) {
      const to = target(port.forward);
      // What no rule of the port alone took. A rule of several ports may have taken more.
      const own = rulesOf(port.name);
      const left = (view) => Math.max(0, received(port.name)(view) - own.filter((rule) => rule.ports === 1).reduce((all, rule) => all + ofRule(rule.n)(view), 0));
      if (to) this.edge("port " + port.name, to.join(" "), left, own.some((rule) => rule.ports > 1) ? " at most" : "");
      if (to && to[0] === "switch") this.edge("switch L2 switch", "out " + port.name, sent(port.name), " by the port, from everywhere");
    }
    for (const chain of chains) {
      const to = target(chain.output);
      if (to) this.edge("chain " + chain.name, to.join(" "), (view) => (view.chains.get(chain.name) || {}).left || 0);
    }
    for (const router of routers) {
      const counts = (one) => (view) => (((view.routers.find((now) => now.name === router.name) || {}).interfaces || []).find((now) => now.name === one.name) || {}).txRate || 0;
      for (const one of list(router.interface)) this.edge("router " + router.name, "out " + one.port, counts(one));
    }
  }
}
