/** Ledger and quarantine: what arrived, what was not accepted and why, and what came late. */
import { Problem, get, path, post } from "../lib/api.js";
import { Page, h, show } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, confirmed, facts, foldedRow, goTo, into, pageHead, pages, payload, problemBox, rowTable, sliceLink, streamOf, streamPicker, table, tableRow, traceLink, windowLink } from "../lib/parts.js";

const VIEWS = /** @type {const} */ ({ slices: "Slices", quarantine: "Quarantine", late: "Late rows" });
const OUTCOMES = ["", "accepted", "duplicate", "conflict", "rejected", "late"];
const REASONS = ["", "malformed", "missing_id", "bad_time", "skew", "unknown_type", "missing_field", "wrong_type", "too_large", "encoding"];
/** @type {Array<string | [string, string]>} */
const SLICES = ["Slice", "Arrived", "Covers", "Status", ["Records", "num"], ["Accepted", "num"], ["Duplicate", "num"], ["Conflict", "num"], ["Rejected", "num"], ["Late", "num"]];
/** @type {Array<string | [string, string]>} */
const ROWS = ["Arrived", "Outcome", "Reason", "What is wrong", "Slice", ["Line", "num"], "Record"];
const LATE = ["Event time", "Event", "Tenant", "Arrived", "Behind by", "Slice"];

export default class Ledger extends Page {
  constructor() {
    super();
    this.list = h("div", { class: "stack" });
    this.name = "";
  }

  get view() {
    const view = this.route.query.get("view") ?? "slices";
    return view in VIEWS ? /** @type {keyof typeof VIEWS} */ (view) : "slices";
  }

  render() {
    void this.open().catch((error) => {
      if (!this.signal.aborted) show(this, pageHead("Ledger", ""), problemBox(error));
    });
  }

  async open() {
    const found = await streamOf(this);
    if (!found) {
      show(this, pageHead("Ledger", ""), h("p", { class: "empty" }, "There are no streams yet."));
      return;
    }
    this.name = found.name;
    show(this, pageHead("Ledger", "Every slice that arrived, every record that was not accepted, verbatim, and every row that came late.",
      streamPicker(found.names, found.name, (name) => goTo(["ledger", name], { view: this.view }))),
    h("div", { class: "row end" },
      h("div", { class: "seg", role: "group", "aria-label": "What to list" }, Object.entries(VIEWS).map(([view, name]) => h("button", { type: "button", "aria-pressed": String(view === this.view), onclick: () => goTo(["ledger", this.name], { view }) }, name))),
      ...this.filters()), this.list);
    const slice = this.route.query.get("slice");
    await into(this.list, this.signal, async () => [slice && this.view === "slices" ? await this.slice(slice) : null, ...(await this.rows())]);
  }

  filters() {
    const { query } = this.route;
    const change = (/** @type {Record<string, string>} */ to) => goTo(["ledger", this.name], { ...Object.fromEntries(query), view: this.view, ...to });
    if (this.view === "late") return [];
    const outcomes = this.view === "slices" ? OUTCOMES : ["", "conflict", "rejected"];
    const pick = (/** @type {string} */ label, /** @type {string} */ name, /** @type {string[]} */ options) => h("label", { class: "field" }, label,
      h("select", { onchange: (/** @type {Event} */ e) => change({ [name]: /** @type {HTMLSelectElement} */ (e.target).value }) }, options.map((one) => h("option", { value: one, selected: one === (query.get(name) ?? "") }, one || "any"))));
    return [
      pick("Outcome", "outcome", outcomes), pick("Reason", "reason", REASONS), this.view === "slices" ? pick("Status", "status", ["", "pending", "accepted", "failed", "retracted"]) : null,
      this.view === "quarantine" && query.get("slice") ? h("button", { type: "button", onclick: () => change({ slice: "" }) }, `Slice ${format.short(query.get("slice") ?? "")} ✕`) : null,
      this.view === "quarantine" ? h("button", { type: "button", onclick: () => void this.replay() }, "Replay …") : null,
    ];
  }

  /** Rows of the chosen view. */
  async rows() {
    const { query } = this.route;
    const filter = { outcome: query.get("outcome"), reason: query.get("reason") };
    if (this.view === "slices") {
      return this.paged("ledger", { ...filter, status: query.get("status") }, "slices", SLICES, (one) => this.entry(one), "No slice is like this.");
    }
    if (this.view === "quarantine") return this.paged("quarantine", { ...filter, slice: query.get("slice") }, "rows", ROWS, (one) => this.refused(one), "Nothing of this kind is in quarantine.", (one) => [payload(one.payload ?? `base64: ${one.payload_base64}`), this.fix(one)]);
    return this.paged("late", {}, "rows", LATE, (one) => this.late(one), "Nothing has come late.");
  }

  /** @param {string} what @param {import("../lib/api.js").Params} params @param {string} key @param {Array<string | [string, string]>} columns @param {(one: any) => any[]} cells @param {string} empty @param {(one: any) => any[]} [more] */
  async paged(what, params, key, columns, cells, empty, more) {
    const made = await pages(async (cursor) => {
      const page = await get(path`/v1/streams/${this.name}/` + what, { ...params, cursor, limit: 50 }, this.signal);
      return { cursor: page.cursor, rows: page[key].map((/** @type {any} */ one) => (more ? foldedRow(columns, cells(one), () => more(one)) : tableRow(columns, cells(one)))) };
    }, (rows) => rowTable(VIEWS[this.view], columns, rows), empty);
    return [h("section", { class: "panel stack", "aria-label": VIEWS[this.view] }, ...made)];
  }

  /** @param {any} one */
  entry(one) {
    const c = one.counts ?? {};
    const cover = one.declared ?? one.observed;
    const refused = (/** @type {string} */ outcome) => (c[outcome] ? h("a", { href: `#/ledger/${encodeURIComponent(this.name)}?view=quarantine&outcome=${outcome}&slice=${one.id}` }, format.count(c[outcome])) : format.count(c[outcome]));
    return [sliceLink(one.id, this.name, one.name), h("span", { class: "nowrap" }, format.instant(one.arrival)), h("span", { class: "nowrap" }, cover ? format.span(cover.start, cover.end) : "–"), chip(one.status),
      format.count(c.records), format.count(c.accepted), format.count(c.duplicate), refused("conflict"), refused("rejected"), format.count(c.late)];
  }

  /** One slice, with the windows it touches. @param {string} id */
  async slice(id) {
    const one = await get(path`/v1/slices/${id}`, {}, this.signal);
    return h("section", { class: "panel stack", "aria-label": "Slice" },
      h("div", { class: "row" }, h("h2", null, one.name || format.short(one.id)), chip(one.status), h("span", { class: "grow" }), h("button", { type: "button", class: "quiet", onclick: () => goTo(["ledger", this.name]) }, "Close")),
      one.error ? h("div", { class: "note-box bad-box" }, one.error) : null,
      facts([["Arrived", format.instant(one.arrival)], ["Source", one.source], ["Declared bounds", one.declared ? format.span(one.declared.start, one.declared.end) : "none"], ["Observed", one.observed ? format.span(one.observed.start, one.observed.end) : "–"],
        ["Format", one.codec === "none" ? one.format : `${one.format}, ${one.codec}`], ["Size", format.bytes(one.bytes)], ["Landed", one.landings === 1 ? "once" : `${one.landings} times`], ["Watermark it met", format.instant(one.watermark)]]),
      h("p", { class: "mono small soft" }, one.id),
      one.windows.length ? table("Windows it touches", ["Window", "State", "Here"], one.windows.map((/** @type {any} */ each) => [
        windowLink(one.stream, each.start, each.end), chip(each.state), each.ignored ? chip("late", `ignored: ${each.ignored}`) : each.observed ? "in the dataset" : each.used ? "to be built" : "not used"]), { tall: one.windows.length > 12 }) : null);
  }

  /** @param {any} one */
  refused(one) {
    return [h("span", { class: "nowrap" }, format.instant(one.arrival)), chip(one.outcome), one.reason ?? "–", one.detail ?? "", sliceLink(one.slice, this.name), one.line === undefined ? "–" : format.count(one.line)];
  }

  /** Send a corrected record in its place. @param {any} one */
  fix(one) {
    if (one.payload === null || one.payload === undefined) return null;
    const text = h("textarea", { rows: "6", class: "mono", "aria-label": "The record, corrected", spellcheck: "false", value: spaced(one.payload) });
    const out = h("div", { role: "status" });
    const send = h("button", { type: "button", onclick: async () => {
      send.disabled = true;
      try {
        const record = JSON.parse(text.value);
        const said = await post(path`/v1/streams/${this.name}/events` + "?wait=1", record, this.signal);
        const [first] = said.outcomes ?? [];
        show(out, h("p", null, first ? chip(first.outcome) : chip("pending", said.status), " ", first?.detail ?? "", " ", first?.event_id ? traceLink(first.event_id, this.name) : null));
      } catch (error) {
        show(out, error instanceof SyntaxError ? h("p", { class: "bad" }, `This is not JSON: ${error.message}`) : problemBox(error));
      } finally {
        send.disabled = false;
      }
    } }, "Send corrected");
    return h("details", null, h("summary", null, "Correct it"), h("div", { class: "stack" }, h("p", { class: "soft small" }, "The corrected record is sent as a new event. The one in quarantine stays as it is."), text, h("div", { class: "row" }, send, out)));
  }

  /** Have the gate decide again about what is in quarantine. */
  async replay() {
    const reason = this.route.query.get("reason") || null;
    const yes = await confirmed("Replay the quarantine", [h("p", null, reason ? ["Records that were rejected as ", h("strong", null, reason)] : "All records in quarantine", " are landed again, and the next round decides about them by the rules of now. Do this after the declaration of the stream was fixed.")], "Replay");
    if (!yes) return;
    try {
      const said = await post(path`/v1/streams/${this.name}/replay`, { reason }, this.signal);
      this.list.prepend(h("div", { class: "note-box good-box", role: "status" }, said.slices.length ? `${format.count(said.slices.length)} slices landed; the next round decides about them.` : "There was nothing to replay."));
    } catch (error) {
      if (error instanceof Problem) this.list.prepend(problemBox(error));
      else throw error;
    }
  }

  /** @param {any} one */
  late(one) {
    return [h("span", { class: "nowrap" }, format.instant(one.event_time)), traceLink(one.event_id, this.name), one.tenant ?? "–", h("span", { class: "nowrap" }, format.instant(one.arrival)), format.duration(one.lateness), sliceLink(one.slice, this.name)];
  }
}
customElements.define("tm-ledger", Ledger);

/** @param {string} text */
function spaced(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
