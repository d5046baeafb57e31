// SPDX-License-Identifier: Apache-2.0
// `policy trace` as a form: builds the packet here, and asks netvmd what would happen to it.
import { ask, make } from "/web/app.js";

const PROTOCOLS = { tcp: 6, udp: 17, icmp: 1 };
const address = (text) => {
  const bytes = text.trim().split(".").map(Number);
  if (bytes.length !== 4 || bytes.some((byte) => !(byte >= 0 && byte <= 255))) throw new Error(`${text} is not an IPv4 address`);
  return bytes;
};
const mac = (text) => {
  const bytes = text.trim().split(":").map((byte) => parseInt(byte, 16));
  if (bytes.length !== 6 || bytes.some((byte) => !(byte >= 0 && byte <= 255))) throw new Error(`${text} is not a MAC address`);
  return bytes;
};
const two = (number) => [(number >> 8) & 255, number & 255];
function checksum(bytes) {
  let sum = 0;
  for (let n = 0; n < bytes.length; n += 2) sum += (bytes[n] << 8) | bytes[n + 1];
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

/** An Ethernet frame of 60 bytes without FCS, as hexadecimal digits. */
export function frame(fields) {
  const protocol = PROTOCOLS[fields.protocol];
  const ports = [...two(Number(fields.source_port)), ...two(Number(fields.destination_port))];
  const flags = fields.flags === "syn" ? 2 : 16;
  const l4 = {
    6: [...ports, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0],
    17: [...ports, ...two(8), 0, 0],
    1: [8, 0, 0xf7, 0xff, 0, 0, 0, 0],
  }[protocol];
  const ip = [0x45, 0, ...two(20 + l4.length), 0, 0, 0x40, 0, 64, protocol, 0, 0, ...address(fields.source), ...address(fields.destination)];
  [ip[10], ip[11]] = two(checksum(ip));
  const bytes = [...mac(fields.destination_mac), ...mac(fields.source_mac), 8, 0, ...ip, ...l4];
  while (bytes.length < 60) bytes.push(0);
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const FIELDS = [["source", "10.0.0.1"], ["destination", "10.0.0.2"], ["source_port", "40000"], ["destination_port", "80"],
  ["source_mac", "02:00:00:00:00:01"], ["destination_mac", "02:00:00:00:00:02"]];

/** Puts the form into a section. */
export function tracer(section, ports) {
  if (section.dataset.ports === ports.join()) return;
  section.dataset.ports = ports.join();
  const choice = (name, values) => make("label", {}, name.replace("_", " "), make("select", { name }, ...values.map((value) => make("option", { value }, value))));
  const input = ([name, value]) => make("label", {}, name.replace("_", " "), make("input", { name, value, required: "" }));
  const result = make("div", { role: "status" });
  const form = make("form", {}, choice("port", ports), choice("protocol", Object.keys(PROTOCOLS)), choice("flags", ["syn", "ack"]),
    ...FIELDS.map(input), make("button", {}, "Trace"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = Object.fromEntries(new FormData(form));
    try {
      const reply = await ask("/v1/policy/trace", { port: fields.port, frame: frame(fields), length: null });
      result.replaceChildren(make("ol", { class: "steps" }, ...reply.steps.map((step) => make("li", {}, step))));
    } catch (error) {
      result.replaceChildren(make("p", { class: "tools bad" }, error.message));
    }
  });
  section.replaceChildren(form, result);
}
