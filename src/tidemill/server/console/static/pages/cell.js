/** From a number to its events: the tiles, slices and events that one cell of an answer is made of. */
import { get } from "../lib/api.js";
import { Page, h, show } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, completenessNotes, facts, foldedRow, hrefTo, loading, pageHead, pages, panel, payload, problemBox, rowTable, sliceLink, streams, table, traceLink, whose } from "../lib/parts.js";
import { metricOf } from "../lib/words.js";

export default class Cell extends Page {
  render() {
    const { query } = this.route;
    const q = query.get("q") ?? "";
    this.body = h("div", { class: "stack" }, loading());
    show(this, pageHead("From a number to its events", ["The cell of ", h("code", null, q)], h("a", { class: "button", href: hrefTo(["explore"], { q, tenant: query.get("tenant"), as_of: query.get("as_of") }) }, "Back to the answer")), this.body);
    void this.open(q).catch((error) => {
      if (!this.signal.aborted) show(/** @type {Element} */ (this.body), problemBox(error));
    });
  }

  /** @param {string} q */
  async open(q) {
    const { query } = this.route;
    const found = metricOf(q, await streams());
    const params = { q, start: query.get("start"), group: query.get("group"), as_of: query.get("as_of"), ...whose(found?.stream, query.get("tenant") ?? "") };
    const ask = (/** @type {string | null} */ cursor) => get("/v1/query/cell", { ...params, cursor, limit: 50 }, this.signal);
    const first = await ask(null);
    const name = first.stream;
    const columns = ["Event time", "Event", "Tenant", "Slice", ["Line", "num"], "Counts as", "Payload"];
    const events = await pages(async (cursor) => {
      const page = cursor === null ? first : await ask(cursor);
      return { cursor: page.cursor, rows: page.events.map((/** @type {any} */ one) => foldedRow(/** @type {any} */ (columns), [
        h("span", { class: "nowrap" }, format.instant(one.event_time)), traceLink(one.event_id, name), one.tenant ?? "–", sliceLink(one.slice, name), (one.line ?? null) === null ? "–" : format.count(one.line), countsAs(one)],
        () => [one.payload === null ? h("p", { class: "soft" }, "The row of this event has expired: only what is remembered of it is shown.") : payload(one.payload)])) };
    }, (rows) => rowTable("Events of the cell", /** @type {any} */ (columns), rows), "No events are in this cell.");
    show(/** @type {Element} */ (this.body),
      h("section", { class: "panel stack", "aria-label": "The number" },
        facts(Object.entries(first.values).map(([key, value]) => /** @type {[string, any]} */ ([key, format.value(value)])), true),
        facts([["Time", first.cell.start ? format.span(first.cell.start, first.cell.end) : "the whole span"], ...Object.entries(first.cell.group ?? {}).map(([key, value]) => /** @type {[string, any]} */ ([key, value === null ? "(none)" : String(value)])), ["Events", format.count(first.total)]]),
        ...completenessNotes(first.completeness)),
      first.tiles ? h("div", { class: "split" },
        panel("Tiles", "the rollups it was read from", table("Tiles", ["Level", "Time", "Revision", "Made of", "State"], first.tiles.map((/** @type {any} */ one) => [
          one.level, h("span", { class: "nowrap" }, format.span(one.start, one.end)), one.revision ? `r${one.revision}` : "–", h("span", { class: "mono soft", title: one.hash ?? "" }, format.short(one.hash ?? "–")), chip(one.state)]),
        { empty: "It was read from raw alone.", tall: first.tiles.length > 12 })),
        panel("Slices", first.slices_total > first.slices.length ? `the first ${first.slices.length} of ${format.count(first.slices_total)} inputs its events came in` : "the inputs its events came in", table("Slices", ["Slice", "Arrived", ["Rows", "num"], ["Late", "num"]], first.slices.map((/** @type {any} */ one) => [
          sliceLink(one.slice, name, one.name), h("span", { class: "nowrap" }, format.instant(one.arrival)), format.count(one.rows), format.count(one.late)]), { empty: "None.", tall: first.slices.length > 12 }))) : null,
      panel("Composition", "the coarsest buckets inside the cell, finer ones towards its ends", table("Composition", ["Source", "Time"], first.pieces.map((/** @type {any} */ one) => [one.source, format.span(one.start, one.end)]), { empty: "Nothing was read.", tall: first.pieces.length > 12 })),
      panel("Events", `${format.count(first.total)} in all`, ...events));
  }
}
customElements.define("tm-cell", Cell);

/** @param {any} one an event of a cell */
function countsAs(one) {
  const what = one.rule ? `${one.from_state} → ${one.to_state}` : one.state ? `in ${one.state} since` : (one.metrics ?? []).join(", ");
  return one.late ? `${what} (late)` : what;
}
