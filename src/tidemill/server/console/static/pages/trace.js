/** Trace: one event by its id, from its arrival to every tile and window revision that it is in. */
import { get } from "../lib/api.js";
import { Page, h, show } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, facts, goTo, into, pageHead, panel, payload, sliceLink, table, windowLink } from "../lib/parts.js";

export default class Trace extends Page {
  render() {
    const { query } = this.route;
    const input = h("input", { type: "search", name: "id", value: query.get("id") ?? "", placeholder: "event_id", "aria-label": "Event id", size: "44", autocomplete: "off", spellcheck: "false" });
    const result = h("div", { class: "stack", "aria-live": "polite" });
    show(this, pageHead("Trace", "Paste the id of an event: when it arrived, what the gate decided, and every number it is in."),
      h("form", { class: "panel row", onsubmit: (/** @type {Event} */ e) => {
        e.preventDefault();
        const id = input.value.trim();
        if (id) goTo(["trace"], { id });
      } }, input, h("button", { class: "primary" }, "Trace")), result);
    const id = query.get("id");
    if (id) void into(result, this.signal, () => this.trace(id, query.get("stream")));
    else show(result, h("p", { class: "empty" }, "Ids are in every list of events: Search has a link to each."));
  }

  /** @param {string} id @param {string | null} stream */
  async trace(id, stream) {
    const said = await get("/v1/trace", { id, stream }, this.signal);
    return said.streams.flatMap((/** @type {any} */ one) => this.found(one, said.streams.length > 1));
  }

  /** @param {any} one @param {boolean} named */
  found(one, named) {
    const { stream, row } = one;
    return [
      h("section", { class: "panel stack", "aria-label": "Event" },
        h("div", { class: "row" }, h("h2", null, named ? `${stream} · ${one.tenant}` : stream), row ? chip("accepted") : null, row?.late ? chip("late") : null),
        row ? [facts([["Event time", format.instant(row.event_time)], ["Tenant", row.tenant ?? "–"], ["Type", row.event_type ?? "–"], ["Arrived", format.instant(row.arrival)], row.watermark !== undefined ? ["Watermark it met", format.instant(row.watermark)] : null,
          ["Slice", sliceLink(row.slice, stream)], row.line !== undefined ? ["Line", format.count(row.line)] : null]), payload(row.payload)] : h("p", { class: "empty" }, "Raw has no row of it: it was not accepted, or has expired.")),
      panel("Arrivals", "each time it was received", table("Arrivals", ["Arrived", "Slice", "Source", "Outcome", "Why", ["Line", "num"]], one.arrivals.map((/** @type {any} */ each) => [
        format.instant(each.arrival), sliceLink(each.slice, stream, each.name), each.source, chip(each.outcome), each.detail ?? each.reason ?? "", each.line === undefined ? "–" : format.count(each.line)]), { empty: "None." })),
      h("div", { class: "split" },
        panel("Rollup tiles", "", table("Tiles", ["Metric", "Level", "Bucket", "Group", "Tile"], one.tiles.map((/** @type {any} */ tile) => [
          tile.metric, tile.level, h("span", { class: "nowrap" }, format.span(tile.bucket, tile.end)), Object.values(tile.group ?? {}).map((value) => String(value)).join(" · "), chip(tile.state, tile.revision ? `r${tile.revision} ${tile.state}` : tile.state)]), { empty: "It counts in no rollup." })),
        panel("Datasets", "", table("Datasets", ["Window", "State", "Revisions"], one.datasets.map((/** @type {any} */ each) => [
          windowLink(stream, each.start, each.end), chip(each.state), revisions(each)]), { empty: "It is in no dataset." }))),
      one.results?.length ? panel("Streaming windows", "", table("Results", ["Window", "Kind", "Time", "Fate", "Revisions"], one.results.map((/** @type {any} */ each) => [
        each.window, each.kind, format.span(each.start, each.end), each.fate, revisions(each)]))) : null,
      one.quarantine?.length ? panel("Quarantine", "", table("Quarantine", ["Outcome", "Reason", "Detail", "Payload"], one.quarantine.map((/** @type {any} */ each) => [
        chip(each.outcome), each.reason ?? "–", each.detail ?? "", payload(each.payload ?? each.payload_base64)]))) : null,
    ];
  }
}
customElements.define("tm-trace", Trace);

/** @param {any} each */
function revisions(each) {
  return h("span", { class: "row" }, each.revisions.map((/** @type {any} */ revision) => chip(revision.includes ? "built" : "other", `r${revision.revision} ${revision.includes ? "has it" : "without it"}${revision.current ? ", current" : ""}`)));
}
