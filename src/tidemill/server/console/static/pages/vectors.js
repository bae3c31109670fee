/** Vectors: what a vector is made of, its values at an instant, and how far it has drifted. */
import { get, path } from "../lib/api.js";
import { chart, legend } from "../lib/charts.js";
import { Page, h, show } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, facts, goTo, into, pageHead, panel, problemBox, streamOf, streamPicker, table } from "../lib/parts.js";

const POINTS = 60; // of the drift: instants that are asked for
const SHOWN = 64; // components

export default class Vectors extends Page {
  render() {
    void this.open().catch((error) => {
      if (!this.signal.aborted) show(this, pageHead("Vectors", ""), problemBox(error));
    });
  }

  async open() {
    const found = await streamOf(this, (one) => one.kind === "delta");
    if (!found) {
      show(this, pageHead("Vectors", ""), h("p", { class: "empty" }, "No stream keeps vectors. Declare one with kind: delta."));
      return;
    }
    const id = this.route.path[1] ?? "";
    const input = h("input", { type: "search", value: id, placeholder: "vector id", "aria-label": "Vector id", size: "32", spellcheck: "false" });
    const result = h("div", { class: "stack" });
    show(this, pageHead("Vectors", "A stream of deltas keeps vectors: a checkpoint, and the changes since. Any instant can be asked for.", streamPicker(found.names, found.name, (name) => goTo(["vectors", name]))),
      h("form", { class: "panel row", onsubmit: (/** @type {Event} */ e) => {
        e.preventDefault();
        if (input.value.trim()) goTo(["vectors", found.name, input.value.trim()]);
      } }, input, h("button", { class: "primary" }, "Show")), result);
    if (id) await into(result, this.signal, () => this.vector(found.name, id));
    else await into(result, this.signal, () => this.recent(found.name));
  }

  /** The newest batches of deltas: which vectors changed. @param {string} name */
  async recent(name) {
    const said = await get(path`/v1/streams/${name}/deltas`, { limit: 20 }, this.signal);
    return panel("Newest changes", "deltas by window", table("Batches", ["Window", ["Deltas", "num"], ["Vectors", "num"], "Revision"], said.windows.map((/** @type {any} */ one) => [
      format.span(one.start, one.end), format.count(one.deltas), format.count(one.vectors), one.revision ? `r${one.revision}` : "–"]), { empty: "No deltas yet." }));
  }

  /** @param {string} name @param {string} id */
  async vector(name, id) {
    const [chain, now] = await Promise.all([get(path`/v1/streams/${name}/chains/${id}`, {}, this.signal), get(path`/v1/streams/${name}/vectors/${id}`, {}, this.signal)]);
    const links = [...chain.checkpoints.map((/** @type {any} */ one) => ({ ...one, kind: "checkpoint" })), ...chain.pending.map((/** @type {any} */ one) => ({ ...one, kind: "delta" }))];
    const drift = h("div");
    void into(drift, this.signal, () => this.drift(name, id, links, now.values ?? []));
    return [
      h("section", { class: "panel stack", "aria-label": "Vector" }, h("div", { class: "row" }, h("h2", null, id), chip(now.exists ? "current" : "other", now.exists ? "exists" : "does not exist"), now.overflow ? chip("failed", "overflow") : null),
        facts([["Dimension", format.count(chain.dimension)], ["Last change", format.instant(now.ts)], ["Merged deltas", format.count(chain.merged)], ["Deltas since the checkpoint", format.count(chain.pending.length)], ["Compaction", chain.strategy], ["Kept from", format.instant(chain.kept_from)]]),
        h("details", null, h("summary", null, "Values"), h("p", { class: "mono small" }, (now.values ?? []).slice(0, SHOWN).map((/** @type {any} */ one) => format.value(one)).join("  "), (now.values ?? []).length > SHOWN ? " …" : ""))),
      panel("Drift", "how far it was from where it is now (Euclidean distance), and its length", drift),
      panel("Chain", "the checkpoint, and the deltas since", table("Chain", ["Time", "What", "Operation", ["Components", "num"], ["Merged", "num"], "Delta"], links.map((one) => [
        h("span", { class: "nowrap" }, format.instant(one.ts)), chip(one.kind === "checkpoint" ? "final" : "queued", one.kind), one.left_out ? `${one.op} (left out)` : one.op, format.count(one.components), format.count(one.merged), h("span", { class: "mono" }, format.short(one.delta_id ?? ""))]), { empty: "The chain is empty.", tall: links.length > 14 })),
    ];
  }

  /** @param {string} name @param {string} id @param {any[]} links @param {any[]} values of now */
  async drift(name, id, links, values) {
    const instants = [...new Set(links.map((one) => one.ts))].sort();
    const step = Math.max(1, Math.ceil(instants.length / POINTS));
    const chosen = instants.filter((_, i) => i % step === 0 || i === instants.length - 1);
    if (chosen.length === 0) return h("p", { class: "empty" }, "No change is kept one by one.");
    const found = await Promise.all(chosen.map((at) => get(path`/v1/streams/${name}/vectors/${id}`, { at }, this.signal)));
    const distance = (/** @type {any[] | null} */ a, /** @type {any[]} */ b) => (a ? Math.sqrt(a.reduce((sum, one, i) => sum + (Number(one) - Number(b[i] ?? 0)) ** 2, 0)) : null);
    const away = found.map((one) => distance(one.values, values));
    const length = found.map((one) => distance(one.values, []));
    const x = chosen.map(format.ms);
    const room = Math.max((x[x.length - 1] - x[0]) * 0.03, 1000);
    const series = [{ name: "distance from now", values: away, texts: away.map(text) }, { name: "length", values: length, texts: length.map(text) }];
    return h("div", { class: "stack" }, chart({ kind: "line", label: `Drift of ${id}`, x, span: [x[0] - room, x[x.length - 1] + room], series, height: 230 }, "low"), legend(series.map((one, i) => ({ name: one.name, colour: `s${i}` }))),
      chosen.length < instants.length ? h("p", { class: "soft small" }, `${chosen.length} of ${instants.length} changes are drawn.`) : null);
  }
}
customElements.define("tm-vectors", Vectors);

/** @param {number | null} one */
function text(one) {
  return one === null ? "–" : one.toPrecision(6);
}
