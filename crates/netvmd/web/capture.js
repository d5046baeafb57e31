// SPDX-License-Identifier: Apache-2.0
// `netvm capture` as a form: the file that netvmd answers with is saved by the browser.
import { make, send } from "/web/app.js";

const PACKET = 6;

/** How many bytes of pcapng are whole blocks, and the packets in them (draft-ietf-opsawg-pcapng, section 3.1). */
export function whole(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0, packets = 0;
  while (at + 12 <= bytes.length) {
    const length = view.getUint32(at + 4, true);
    if (length < 12 || at + length > bytes.length) break;
    packets += view.getUint32(at, true) === PACKET;
    at += length;
  }
  return { end: at, packets };
}

function joined(chunks) {
  const all = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

function save(bytes) {
  const link = make("a", { download: `netvm-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.pcapng` });
  link.href = URL.createObjectURL(new Blob([bytes], { type: "application/x-pcapng" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  return link.download;
}

/** Puts the form into a section; `places`: pairs of a name and words for it. */
export function capturer(section, places) {
  const key = places.map(([name]) => name).join();
  if (section.dataset.places === key) return;
  section.dataset.places = key;
  const option = ([value, words]) => make("option", { value }, words);
  const limit = (name, value, max) => make("label", {}, name, make("input", { name, type: "number", value, min: "1", max, required: "" }));
  const dropped = make("input", { name: "dropped", type: "checkbox" });
  const result = make("div", { role: "status" });
  const button = make("button", {}, "Capture");
  const form = make("form", {},
    make("label", {}, "at", make("select", { name: "at" }, option(["", "all ports"]), ...places.map(option))),
    make("label", {}, "only what is dropped", dropped),
    make("label", {}, "filter", make("input", { name: "filter", placeholder: "tcp port 443" })),
    limit("packets", "1000", "1000000"), limit("seconds", "10", "600"), button);
  const say = (text, kind) => result.replaceChildren(make("p", { class: "tools " + kind }, text));
  let reader = null;
  async function capture() {
    const fields = new FormData(form);
    const at = fields.get("at");
    const reply = await send("/v1/capture/file", {
      at: at ? [at] : [], dropped: dropped.checked, filter: fields.get("filter"),
      packets: Number(fields.get("packets")), seconds: Number(fields.get("seconds")),
    });
    const chunks = [];
    let bytes = 0;
    reader = reply.body.getReader();
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      chunks.push(next.value);
      bytes += next.value.length;
      say(`capturing, ${bytes.toLocaleString("en")} bytes so far`, "");
    }
    const all = joined(chunks);
    const { end, packets } = whole(all);
    say(`${packets.toLocaleString("en")} packets in ${save(all.subarray(0, end))}`, "good");
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // What has come so far is saved.
    if (reader) return reader.cancel();
    button.textContent = "Stop and save";
    say("capturing", "");
    try {
      await capture();
    } catch (error) {
      say(error.message, "bad");
    }
    reader = null;
    button.textContent = "Capture";
  });
  section.replaceChildren(form, result);
}
