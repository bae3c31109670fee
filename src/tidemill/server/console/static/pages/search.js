/** Search: accepted events by what they hold. */
import { Problem, get, path } from "../lib/api.js";
import { Page, h, show } from "../lib/dom.js";
import { TmEditor } from "../lib/editor.js";
import * as format from "../lib/format.js";
import { completenessNotes, foldedRow, goTo, hrefTo, into, pageHead, pages, payload, problemBox, rowTable, sliceLink, stream, streamOf, streamPicker, tenantPicker, traceLink, whose } from "../lib/parts.js";
import { note } from "../lib/routes.js";
import { searchCompletions } from "../lib/words.js";

const COLUMNS = ["Event time", "Event", "Tenant", "Type", "Slice", "Windows", "Payload"];

export default class Search extends Page {
  constructor() {
    super();
    this.editor = new TmEditor();
    this.result = h("div", { class: "stack" });
    this.tenant = "";
    this.name = "";
    /** @type {any} */
    this.described = null;
  }

  render() {
    void this.open().catch((error) => {
      if (!this.signal.aborted) show(this, pageHead("Search", ""), problemBox(error));
    });
  }

  async open() {
    const found = await streamOf(this);
    if (!found) {
      show(this, pageHead("Search", ""), h("p", { class: "empty" }, "There are no streams yet."));
      return;
    }
    this.name = found.name;
    this.described = await stream(found.name);
    this.tenant = this.route.query.get("tenant") ?? "";
    this.editor.setAttribute("label", "Search text");
    this.editor.complete = (before) => searchCompletions(before, this.described);
    this.editor.addEventListener("ask", () => void this.ask());
    this.editor.value = this.route.query.get("q") ?? "";
    const paths = (this.described.attributes?.paths ?? []).map((/** @type {any} */ one) => one.path);
    show(this, pageHead("Search", ["WHERE looks up ", paths.length ? paths.join(", ") : "indexed paths (this stream declares none)", "; FILTER tests anything in the payload."],
      streamPicker(found.names, found.name, (name) => goTo(["search", name]))),
      h("section", { class: "panel stack", "aria-label": "Search" }, this.editor, h("div", { class: "row end" }, h("button", { type: "button", class: "primary", onclick: () => void this.ask() }, "Search"),
        h("span", { class: "grow" }), tenantPicker(this.described, this.tenant, (tenant) => {
          this.tenant = tenant;
          void this.ask();
        }))), this.result);
    await this.ask();
  }

  async ask() {
    const q = this.editor.value.trim();
    this.editor.unmark();
    note(["search", this.name], { q, tenant: this.tenant });
    await into(this.result, this.signal, async () => {
      try {
        return await this.found(q);
      } catch (error) {
        if (!(error instanceof Problem) || error.code !== "query") throw error;
        this.editor.mark(error);
        return [];
      }
    });
  }

  /** @param {string} q */
  async found(q) {
    const params = { q, ...whose(this.described, this.tenant) };
    const ask = (/** @type {string | null} */ cursor) => get(path`/v1/streams/${this.name}/search`, { ...params, cursor, total: cursor === null }, this.signal);
    const first = await ask(null);
    if (!first.rows) return h("section", { class: "panel" }, payload(first));
    const made = await pages(async (cursor) => {
      const page = cursor === null ? first : await ask(cursor);
      return { cursor: page.cursor, rows: page.rows.map((/** @type {any} */ one) => this.row(one)) };
    }, (rows) => rowTable("Events found", COLUMNS, rows), "No accepted event is like this.");
    return [...completenessNotes(first.completeness), h("section", { class: "panel stack", "aria-label": "Events found" },
      h("div", { class: "panel-head" }, h("h2", null, "Events"), h("span", { class: "note" }, first.total === null ? "" : `${format.count(first.total)} found`)), ...made)];
  }

  /** @param {any} one */
  row(one) {
    return foldedRow(COLUMNS, [
      h("span", { class: "nowrap" }, format.instant(one.event_time)), traceLink(one.event_id, this.name), one.tenant ?? "–", one.event_type ?? "–", sliceLink(one.slice, this.name),
      h("a", { href: hrefTo(["stream", this.name], { at: one.event_time }) }, "Window")], () => [payload(one.payload)]);
  }
}
customElements.define("tm-search", Search);
