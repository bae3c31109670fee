/** Explore: a question in words or picked from the catalog, its answer as a chart, and as it was before. */
import { Problem, download, get, hasToken, path, post, save } from "../lib/api.js";
import { Answer, asCurl, asPython } from "../lib/answers.js";
import { chart, legend, seriesColour, zoomButtons } from "../lib/charts.js";
import { Page, h, settled, show } from "../lib/dom.js";
import { TmEditor } from "../lib/editor.js";
import * as format from "../lib/format.js";
import { completenessNotes, copyButton, hrefTo, loading, pageHead, pages, problemBox, rowTable, sliceLink, stream, streams, tableRow, tenantPicker, whose } from "../lib/parts.js";
import { note } from "../lib/routes.js";
import { completions, dimensionsOf, firstQuery, metricIn, metricOf } from "../lib/words.js";

/** @typedef {"line" | "bars" | "heat" | "flow"} Kind */
const KINDS = /** @type {const} */ ({ line: "Line", bars: "Bars", heat: "Heatmap", flow: "State flow" });
const SPANS = { "": "all data", "1h": "last hour", "6h": "last 6 hours", "24h": "last day", "7d": "last week", "30d": "last 30 days" };
const INTERVALS = ["", "1m", "5m", "15m", "1h", "6h", "1d", "1w"];
const STOPS = 1000; // of the slider that are asked for at once
const MOST_STOPS = 20_000;
const ROWS = 100; // of the table, at a time
const EPOCH = "1970-01-01T00:00:00Z";

export default class Explore extends Page {
  constructor() {
    super();
    /** @type {any[]} */
    this.streams = [];
    /** @type {any} */
    this.described = null;
    this.tenant = "";
    /** @type {Answer | null} */
    this.answer = null;
    /** @type {Answer | null} */
    this.current = null; // what is said now, while an earlier answer is shown
    /** @type {Kind | null} */
    this.kind = null;
    this.value = "";
    this.asOf = "";
    this.asked = 0;
    this.stops = ""; // what the slider is over
    this.editor = new TmEditor();
    this.picks = h("div", { class: "row end" });
    this.whose = h("div");
    this.result = h("div", { class: "stack" });
    this.figure = h("div", { class: "stack" });
    this.travel = h("div", { class: "stack" });
  }

  render() {
    this.editor.setAttribute("label", "Query text");
    this.editor.addEventListener("ask", () => void this.ask());
    this.editor.complete = (before, after) => {
      this.describe();
      this.learn();
      return completions(before, after, this.streams, this.described);
    };
    show(this, pageHead("Explore", "Ask the rollups. Every answer says how complete it is; click a number to see the events it is made of."),
      h("section", { class: "panel stack", "aria-label": "Question" }, this.picks, this.editor,
        h("div", { class: "row end" }, h("button", { type: "button", class: "primary", onclick: () => void this.ask() }, "Run"), h("span", { class: "soft small" }, "Ctrl + Enter runs it, Ctrl + Space completes"), h("span", { class: "grow" }), this.whose)),
      this.result);
    void this.start();
  }

  async start() {
    show(this.result, loading());
    try {
      this.streams = await streams();
      const { query } = this.route;
      const first = this.streams.find((one) => one.metrics.length > 0);
      const text = query.get("q") ?? (first ? firstQuery(first.stream, first.metrics[0]) : "");
      this.tenant = query.get("tenant") ?? "";
      this.asOf = query.get("as_of") ?? "";
      this.kind = /** @type {Kind | null} */ (query.get("chart"));
      this.editor.value = text;
      this.describe();
      if (text) await this.ask();
      else show(this.result, h("p", { class: "empty" }, "No stream declares metrics yet. Declare one under metrics: in tidemill.yaml."));
    } catch (error) {
      if (!this.signal.aborted) show(this.result, problemBox(error));
    }
  }

  /** Show the pickers as the text has it. */
  describe() {
    const found = metricOf(this.editor.value, this.streams);
    if (found && this.described?.stream !== found.stream.stream) this.described = found.stream;
    show(this.whose, tenantPicker(this.described, this.tenant, (tenant) => {
      this.tenant = tenant;
      void this.ask();
    }));
    this.pickers(found);
  }

  /** Ask for the values of attributes, which only suggestions need, and suggest again once they are known. */
  learn() {
    const known = this.described;
    if (!known || known.attributes !== undefined) return;
    stream(known.stream).then((said) => {
      if (this.described !== known) return;
      this.described = said;
      this.editor.suggestAgain();
    }, () => {}); // there are fewer suggestions
  }

  /** @param {{stream: any, metric: any} | null} found */
  pickers(found) {
    const text = this.editor.value;
    const metric = found?.metric ?? null;
    const group = /\bGROUP BY\s+([\w.,\s]+?)(?=\s+(?:[A-Z]{2,}\b)|$)/.exec(text)?.[1].split(",").map((one) => one.trim()) ?? [];
    const interval = /\bINTERVAL\s+(\w+)/i.exec(text)?.[1] ?? "";
    const since = /\bSINCE\s+(\w+)/i.exec(text)?.[1] ?? "";
    const value = /^\s*SELECT\s+(.+?)\s+FROM\b/is.exec(text)?.[1] ?? "";
    const chosen = found && metric ? `${found.stream.stream}.${metric.metric}` : "";
    const all = this.streams.flatMap((one) => one.metrics.map((/** @type {any} */ each) => ({ stream: one.stream, metric: each })));
    const rebuilt = (/** @type {Record<string, any>} */ change) => this.pick({ chosen, value, group, interval, since, ...change });
    const dims = metric ? dimensionsOf(metric) : [];
    show(this.picks,
      select("Metric", all.map((one) => [`${one.stream}.${one.metric.metric}`, one.metric.metric === one.stream ? one.stream : `${one.stream} · ${one.metric.metric}`]), chosen, (to) => rebuilt({ chosen: to, value: "", group: [] })),
      metric ? select("Value", withChosen([...metric.values, ...(metric.kind === "histogram" ? ["bins"] : [])], value), value, (to) => rebuilt({ value: to })) : null,
      metric ? select("By", withChosen(["", ...dims], group.join(", ")).map(([one]) => [one, one || "nothing"]), group.join(", "), (to) => rebuilt({ group: to ? [to] : [] })) : null,
      metric ? select("Each", withChosen(INTERVALS, interval).map(([one]) => [one, one || "in total"]), interval, (to) => rebuilt({ interval: to })) : null,
      metric ? select("Span", withChosen(Object.keys(SPANS), since).map(([one]) => [one, SPANS[/** @type {keyof typeof SPANS} */ (one)] ?? `last ${one}`]), since, (to) => rebuilt({ since: to })) : null);
  }

  /** Write the text that the pickers say. @param {Record<string, any>} how */
  pick({ chosen, value, group, interval, since }) {
    const [name, ...rest] = chosen.split(".");
    const one = this.streams.find((each) => each.stream === name);
    const metric = one?.metrics.find((/** @type {any} */ each) => each.metric === rest.join("."));
    if (!metric) return;
    const from = metric.metric === name ? name : `${name}.${metric.metric}`;
    const what = value || (metric.kind === "state" ? "states" : metric.values[0]);
    const by = group.length ? group : metric.kind === "state" && what === "states" && !value ? ["state"] : [];
    this.editor.value = `SELECT ${what} FROM ${from}${since ? ` SINCE ${since}` : ""}${interval ? ` INTERVAL ${interval}` : ""}${by.length ? ` GROUP BY ${by.join(", ")}` : ""}`;
    void this.ask();
  }

  get params() {
    return whose(this.described, this.tenant);
  }

  async ask() {
    const turn = ++this.asked;
    const q = this.editor.value.trim();
    if (!q) return;
    this.editor.unmark();
    this.describe();
    this.result.classList.add("busy");
    try {
      const now = { query: q, ...this.params };
      const [said, current] = await Promise.all([post("/v1/query", { ...now, ...(this.asOf ? { as_of: this.asOf } : {}) }, this.signal), this.asOf ? post("/v1/query", now, this.signal) : null]);
      if (turn !== this.asked || this.signal.aborted) return;
      note(["explore"], { q, tenant: this.tenant, as_of: this.asOf, chart: this.kind });
      const metric = metricIn(q, this.streams);
      this.answer = said.rows ? new Answer(said, metric, q) : null;
      this.current = current ? new Answer(current, metric, q) : null;
      if (this.answer) await this.showAnswer(this.answer);
      else show(this.result, h("section", { class: "panel" }, h("pre", { class: "payload", tabindex: "0" }, JSON.stringify(said, null, 2))));
    } catch (error) {
      if (turn !== this.asked || this.signal.aborted) return;
      if (error instanceof Problem && error.code === "query") {
        this.editor.mark(error);
        show(this.result);
      } else show(this.result, problemBox(error));
    } finally {
      this.result.classList.remove("busy");
    }
  }

  /** @param {Answer} answer */
  async showAnswer(answer) {
    const kinds = answer.kinds();
    if (!this.kind || !kinds.includes(this.kind)) this.kind = kinds[0];
    if (!answer.values.includes(this.value)) this.value = answer.values[0];
    const numbers = await this.numbers(answer);
    this.draw(answer);
    show(this.result,
      h("section", { class: "panel stack", "aria-label": "Answer" }, this.tools(answer, kinds), this.figure, said(answer), ...completenessNotes(answer.said.completeness)),
      this.travel, h("section", { class: "panel stack", "aria-label": "Numbers" }, numbers));
    const key = JSON.stringify([answer.said.stream, answer.said.span]);
    if (this.stops !== key) {
      this.stops = key;
      void this.travelling(answer.said.stream, answer.said.span);
    }
  }

  /** @param {Answer} answer @param {Kind[]} kinds */
  tools(answer, kinds) {
    const again = () => void this.showAnswer(answer);
    const failed = h("span", { class: "bad small", role: "alert" });
    return h("div", { class: "row" },
      h("div", { class: "seg", role: "group", "aria-label": "Chart" }, kinds.map((kind) => h("button", { type: "button", "aria-pressed": String(kind === this.kind), onclick: () => {
        this.kind = kind;
        again();
      } }, KINDS[kind]))),
      answer.values.length > 1 ? h("select", { "aria-label": "Value to draw", onchange: (/** @type {Event} */ e) => {
        this.value = /** @type {HTMLSelectElement} */ (e.target).value;
        again();
      } }, answer.values.map((name) => h("option", { value: name, selected: name === this.value }, name))) : null,
      this.zoom ?? null, h("span", { class: "grow" }),
      h("span", { class: "soft small" }, "Copy as"), h("div", { class: "seg", role: "group", "aria-label": "Copy as" },
        copyButton("curl", () => asCurl(answer.q, this.said(), hasToken())), copyButton("Python", () => asPython(answer.q, this.said(), hasToken())), copyButton("text", () => answer.q)),
      h("span", { class: "soft small" }, "Save as"), h("div", { class: "seg", role: "group", "aria-label": "Save as" }, h("button", { type: "button", onclick: () => save(answer.csv(), "answer.csv", "text/csv") }, "CSV"),
      h("button", { type: "button", onclick: () => {
        failed.textContent = "";
        download("/v1/query", { q: answer.q, ...this.said(), format: "arrow" }, "answer.arrow").catch((error) => (failed.textContent = error.message));
      } }, "Arrow")), failed);
  }

  /** The parameters beside the text. @returns {Record<string, any>} */
  said() {
    return { ...this.params, ...(this.asOf ? { as_of: this.asOf } : {}) };
  }

  /** @param {Answer} answer */
  draw(answer) {
    const found = answer.spec(/** @type {Kind} */ (this.kind), this.value, (row) => this.open(answer, row));
    this.zoom = undefined;
    if (!found) {
      show(this.figure, h("p", { class: "empty" }, "The answer has no rows: nothing of this kind is in the span."));
      return;
    }
    const { spec, left } = found;
    const entries = (spec.series ?? []).map((series, i) => ({ name: series.name, colour: series.colour ?? seriesColour(i) }));
    if (this.current && spec.kind === "line") this.ghost(spec, this.current);
    const drawn = chart(spec);
    if (answer.timed) this.zoom = zoomButtons(drawn);
    show(this.figure, drawn, entries.length > 1 || this.current ? legend([...entries, ...(this.current ? [{ name: "as it is now (dashed)", colour: "soft" }] : [])]) : null,
      left ? h("p", { class: "soft small" }, `${left} more groups are in the table.`) : null);
  }
  /** @type {HTMLElement | undefined} */
  zoom;

  /** The answer of now behind an earlier one. @param {import("../lib/charts.js").Spec} spec @param {Answer} current */
  ghost(spec, current) {
    const now = current.spec("line", this.value, () => {})?.spec;
    if (!now?.series || !now.x || !spec.x || !spec.series) return;
    const x = [...new Set([...spec.x, ...now.x])].sort((a, b) => a - b);
    const spread = (/** @type {any[]} */ values, /** @type {number[]} */ at, /** @type {any} */ none) => {
      const by = new Map(at.map((one, i) => [one, values[i]]));
      return x.map((one) => by.get(one) ?? none);
    };
    const { x: own, series } = spec;
    const places = new Map(series.map((one, i) => [one.name, i]));
    const ghosts = now.series.map((one, i) => ({ name: one.name, values: spread(one.values, /** @type {number[]} */ (now.x), null), texts: spread(one.texts, /** @type {number[]} */ (now.x), ""), colour: seriesColour(places.get(one.name) ?? i), ghost: true }));
    spec.series = [...series.map((one) => ({ ...one, values: spread(one.values, own, null), texts: spread(one.texts, own, "") })), ...ghosts];
    spec.x = x;
    spec.pick = undefined;
    if (now.span && spec.span) spec.span = [Math.min(now.span[0], spec.span[0]), Math.max(now.span[1], spec.span[1])];
  }

  /** From a number to its events. @param {Answer} answer @param {any} row */
  open(answer, row) {
    if (answer.traceable) location.hash = this.cellHref(answer, row);
  }

  /** @param {Answer} answer @param {any} row */
  cellHref(answer, row) {
    const cell = answer.cell(row);
    const names = answer.namesOf(row);
    const group = Object.keys(names).length ? JSON.stringify(names) : "";
    return hrefTo(["cell"], { q: answer.q, start: cell?.start, group, tenant: this.tenant, as_of: this.asOf });
  }

  /** Every number is a link to its events. @param {Answer} answer */
  async numbers(answer) {
    const isValue = (/** @type {string} */ name) => answer.values.includes(name);
    const columns = answer.columns.map((name) => /** @type {[string, string]} */ ([name, isValue(name) ? "num" : "nowrap"]));
    const cell = (/** @type {any} */ row, /** @type {string} */ name) => {
      const text = name === "bucket" ? format.instant(row[name]) : format.value(row[name]);
      return isValue(name) && row[name] !== null && answer.traceable ? h("a", { href: this.cellHref(answer, row) }, text) : text;
    };
    const shown = await pages(async (cursor) => {
      const [from, to] = [Number(cursor), Number(cursor) + ROWS];
      return { rows: answer.rows.slice(from, to).map((row) => tableRow(columns, answer.columns.map((name) => cell(row, name)))), cursor: to < answer.rows.length ? String(to) : null };
    }, (rows) => rowTable("The rows of the answer", columns, rows, { tall: true }), "There are none.");
    return [h("div", { class: "panel-head" }, h("h2", null, "Numbers"), h("span", { class: "note" }, `${format.count(answer.rows.length)} rows`)), ...shown];
  }

  // -- time travel

  /** Offer a slider over what changed the span. @param {string} name @param {{start: string, end: string} | null} span */
  async travelling(name, span) {
    try {
      const { changes, left } = await this.changes(name, span);
      if (!this.signal.aborted) show(this.travel, changes.length ? this.slider(changes, left) : null);
    } catch (error) {
      if (this.signal.aborted) return;
      const none = error instanceof Problem && (error.status === 404 || error.status === 403);
      show(this.travel, none ? null : problemBox(error));
    }
  }

  /** The oldest first. @param {string} name @param {{start: string, end: string} | null} span */
  async changes(name, span) {
    /** @type {any[]} */
    const changes = [];
    /** @type {string | null} */
    let cursor = null;
    let total = 0;
    do {
      const params = { after: EPOCH, from: span?.start, to: span?.end, limit: STOPS, cursor };
      /** @type {any} */
      const page = await get(path`/v1/streams/${name}/changes`, params, this.signal);
      changes.push(...page.changes);
      ({ cursor, total } = page);
    } while (cursor !== null && changes.length < MOST_STOPS);
    return { changes, left: total - changes.length };
  }

  /** @param {any[]} changes @param {number} left how many more there are */
  slider(changes, left) {
    const out = h("div", { role: "status" });
    const at = this.asOf ? changes.findLastIndex((/** @type {any} */ one) => one.at <= this.asOf) : changes.length;
    const range = h("input", { type: "range", min: "0", max: String(changes.length), value: String(at < 0 ? 0 : at), "aria-label": "As of which arrival", oninput: () => say(), onchange: () => go() });
    const say = () => {
      const one = changes[Number(range.value)];
      range.setAttribute("aria-valuetext", one ? `as of ${one.at}` : "now");
      show(out, one ? [h("strong", null, `As of ${format.instant(one.at)}`), h("span", { class: "soft" }, ` · ${one.kind === "retracted" ? "retracted" : "arrived"} then: `, sliceLink(one.slice, this.described?.stream ?? "", one.name), `, ${format.count(one.rows)} rows`,
        one.late ? `, ${format.count(one.late)} late` : "", one.observed ? `, of ${format.span(one.observed.start, one.observed.end)}` : "")] : [h("strong", null, "Now"), h("span", { class: "soft" }, ` · after ${format.count(changes.length)} changes${left > 0 ? ` (${format.count(left)} newer ones are not on the slider)` : ""}`)], this.changed());
    };
    const go = settled(() => {
      this.asOf = changes[Number(range.value)]?.at ?? "";
      void this.ask().then(say);
    }, 150);
    say();
    return h("section", { class: "panel stack", "aria-label": "Time travel" },
      h("div", { class: "panel-head" }, h("h2", null, "Time travel"), h("span", { class: "note" }, "what did this chart say after each arrival?"), h("span", { class: "grow" }),
        h("button", { type: "button", class: "quiet", onclick: () => {
          range.value = String(changes.length);
          say();
          go();
        } }, "Back to now")), range, out);
  }

  /** How an earlier answer differs from the one of now. */
  changed() {
    const said = this.answer?.said.as_of;
    if (!this.asOf || !said) return null;
    const back = said.reaches_back_to ? ` Answers reach back to ${format.instant(said.reaches_back_to)}.` : "";
    return h("p", { class: "soft" }, said.slices_after ? `${format.count(said.slices_after)} ${said.slices_after === 1 ? "slice has" : "slices have"} arrived since${said.changed ? " and changed this answer" : "; this answer is still the same"}.` : "Nothing has arrived since.", back);
  }
}
customElements.define("tm-explore", Explore);

/** @param {Answer} answer */
function said(answer) {
  const { completeness, level, as_of: then } = answer.said;
  const through = completeness?.complete_through;
  const parts = [level ? `From the ${level} level.` : "", then?.at ? `As it was at ${format.instant(then.at)}.` : completeness?.complete ? "Complete." : through ? `Complete through ${format.instant(through)}; later data may still arrive.` : "Nothing is known to be complete yet.",
    completeness?.as_of ? `Newest arrival ${format.instant(completeness.as_of)}.` : ""];
  return h("p", { class: "soft small" }, parts.filter(Boolean).join(" "));
}

/** @param {string} name @param {Array<string[]>} options @param {string} chosen @param {(to: string) => void} to */
function select(name, options, chosen, to) {
  return h("label", { class: "field" }, name, h("select", { onchange: (/** @type {Event} */ e) => to(/** @type {HTMLSelectElement} */ (e.target).value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text ?? value))));
}

/** @param {string[]} all @param {string} chosen @returns {Array<string[]>} */
function withChosen(all, chosen) {
  return (all.includes(chosen) ? all : [chosen, ...all]).map((one) => [one, one]);
}
