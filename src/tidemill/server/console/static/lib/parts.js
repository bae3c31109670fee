/** Parts that pages share: panels, tables, problems, chips, pickers, pages of a list. */
import { Problem, get, path } from "./api.js";
import { fill, h, show, words } from "./dom.js";
import * as format from "./format.js";
import { goTo, hrefTo } from "./routes.js";

/** @typedef {import("./dom.js").Child} Child */

/** @param {string} title @param {Child | Child[]} lead @param {...Child} more beside the title */
export function pageHead(title, lead, ...more) {
  document.title = `${title} · Tidemill`;
  return h("header", { class: "page-head" }, h("h1", { tabindex: "-1" }, title), h("span", { class: "grow" }), ...more,
    lead ? h("p", { class: "lead" }, lead) : null);
}

/** @param {string} title @param {Child | Child[]} note @param {...(Child | Child[])} content */
export function panel(title, note, ...content) {
  return h("section", { class: "panel", "aria-label": title },
    h("div", { class: "panel-head" }, h("h2", null, title), note ? h("span", { class: "note" }, note) : null), ...content);
}

/** @param {string} state @param {string} [text] */
export function chip(state, text) {
  return h("span", { class: `chip dot-${/^[a-z_]+$/.test(state) ? state : "other"}` }, text ?? state);
}

/** @param {Array<[string, Child] | null>} pairs @param {boolean} [big] */
export function facts(pairs, big = false) {
  return h("dl", { class: "facts" }, pairs.filter((pair) => pair !== null).map(([name, value]) =>
    h("div", null, h("dt", null, name), h("dd", big ? { class: "big" } : null, value))));
}

/**
 * A table. A column is its name, or [name, "num"]; a cell is what to show.
 * @param {string} caption for those who do not see it
 * @param {Array<string | [string, string]>} columns
 * @param {Array<Array<Child>>} rows
 * @param {{tall?: boolean, empty?: string}} [how]
 */
export function table(caption, columns, rows, how = {}) {
  if (rows.length === 0 && how.empty) return h("p", { class: "empty" }, how.empty);
  const kinds = columns.map((column) => (Array.isArray(column) ? column[1] : ""));
  return scroller(caption, how.tall ? "wide tall" : "wide", h("table", null,
    h("caption", { class: "hidden" }, caption),
    h("thead", null, h("tr", null, columns.map((column, i) => h("th", { scope: "col", class: kinds[i] || null }, Array.isArray(column) ? column[0] : column)))),
    h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, i) => h("td", { class: kinds[i] || null }, cell)))))));
}

/** What scrolls where its content is wider or taller than its place. Whether it is depends on the screen, so it always takes the focus: keys can scroll it. @param {string} label @param {string} className @param {Child} content */
function scroller(label, className, content) {
  return h("div", { class: className, role: "group", "aria-label": label, tabindex: "0" }, content);
}

/** What went wrong, and what to do about it. @param {unknown} error */
export function problemBox(error) {
  const problem = error instanceof Problem ? error : null;
  if (!problem) console.error(error);
  const detail = problem ? problem.message : "The page failed. This is a fault of the console.";
  return h("div", { class: "note-box bad-box", role: "alert" }, h("p", null, detail.split("\n")[0]),
    problem?.hint ? h("p", { class: "remedy" }, words(problem.hint)) : null);
}

/** @param {string} [text] */
export function loading(text = "Loading …") {
  return h("p", { class: "loading", role: "status" }, text);
}

/**
 * Show what `work` makes in `host`; what is there stays, faded, until then. Errors are shown in its place.
 * @param {Element} host
 * @param {AbortSignal} signal
 * @param {() => Promise<Child | Child[]>} work
 */
export async function into(host, signal, work) {
  if (host.childElementCount === 0) show(host, loading());
  else host.classList.add("busy");
  try {
    const made = await work();
    if (!signal.aborted) show(host, made);
  } catch (error) {
    if (!signal.aborted) show(host, problemBox(error));
  } finally {
    host.classList.remove("busy");
  }
}

/** @type {Promise<any[]> | null} */
let known = null;

/** The streams that there are, asked for once. @returns {Promise<any[]>} */
export function streams() {
  known ??= get("/v1/streams").then((said) => said.streams);
  known.catch(() => (known = null));
  return known;
}

export function forgetStreams() {
  known = null;
  described.clear();
}

/** @type {Map<string, Promise<any>>} */
const described = new Map();

/** One stream, with the values of its attributes and its tenants. @param {string} name @returns {Promise<any>} */
export function stream(name) {
  let found = described.get(name);
  if (!found) {
    found = get(path`/v1/streams/${name}`);
    found.catch(() => described.delete(name));
    described.set(name, found);
  }
  return found;
}

/**
 * A choice of streams that leads to the same page of another.
 * @param {string[]} names
 * @param {string} chosen
 * @param {(name: string) => void} to
 */
export function streamPicker(names, chosen, to) {
  return h("label", { class: "field" }, "Stream",
    h("select", { onchange: (/** @type {Event} */ e) => to(/** @type {HTMLSelectElement} */ (e.target).value) },
      names.map((name) => h("option", { value: name, selected: name === chosen }, name))));
}

/**
 * The stream of a page: that of its route, or the first. Leads there when the route names none.
 * @param {import("./dom.js").Page} page
 * @param {(one: any) => boolean} [fits]
 * @returns {Promise<{name: string, names: string[], all: any[]} | null>}
 */
export async function streamOf(page, fits = () => true) {
  const all = await streams();
  const names = all.filter(fits).map((one) => one.stream);
  const name = page.route.path[0] ?? names[0];
  if (name === undefined) return null;
  if (!names.includes(name)) throw new Problem(404, { detail: `there is no stream ${JSON.stringify(name)} here`, hint: `streams: ${names.join(", ") || "none"}` });
  return { name, names, all };
}

/**
 * Whose events are asked for: an operator of a stream with several tenants chooses, others have no choice.
 * @param {any} described the stream
 * @param {string} chosen
 * @param {(tenant: string) => void} to
 */
export function tenantPicker(described, chosen, to) {
  const names = described?.tenants?.names ?? [];
  if (names.length < 2) return null;
  return h("label", { class: "field" }, "Tenant",
    h("select", { onchange: (/** @type {Event} */ e) => to(/** @type {HTMLSelectElement} */ (e.target).value) },
      h("option", { value: "" }, "All tenants"),
      names.map((/** @type {string} */ name) => h("option", { value: name, selected: name === chosen }, name))));
}

/** The parameters that say whose events. @param {any} described @param {string} tenant */
export function whose(described, tenant) {
  if (tenant) return { tenant };
  return (described?.tenants?.names ?? []).length > 1 ? { all_tenants: true } : {};
}

/** A payload as it is, or spaced out when it is JSON. @param {unknown} payload */
export function payload(payload) {
  const text = typeof payload === "string" ? payload : JSON.stringify(payload, (_key, value) => (value instanceof format.Exact ? value.text : value), 2);
  return h("pre", { class: "payload", tabindex: "0" }, text ?? "");
}

/** @param {string} id @param {string} stream @param {string | null} [name] */
export function sliceLink(id, stream, name) {
  const named = name && name !== id ? name : "";
  return h("a", { href: hrefTo(["ledger", stream], { slice: id }), class: named ? null : "mono", title: id }, named || format.short(id));
}

/** @param {string} id @param {string} stream */
export function traceLink(id, stream) {
  return h("a", { href: hrefTo(["trace"], { id, stream }), class: "mono", title: "Trace this event" }, format.short(id));
}

/** @param {string} stream @param {string} start @param {string} end */
export function windowLink(stream, start, end) {
  return h("a", { href: hrefTo(["stream", stream], { at: start }), class: "nowrap" }, format.span(start, end));
}

/** Copy text, and say so. @param {string} label @param {() => string} text */
export function copyButton(label, text) {
  const button = h("button", {
    type: "button", onclick: async () => {
      try {
        await navigator.clipboard.writeText(text());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed to copy";
      }
      setTimeout(() => (button.textContent = label), 1500);
    },
  }, label);
  return button;
}

/**
 * A list that comes a page at a time: rows are added by a button below it.
 * @param {(cursor: string | null) => Promise<{rows: HTMLElement[], cursor: string | null}>} ask
 * @param {(rows: HTMLElement[]) => HTMLElement} first what holds the rows; later ones go to its tbody
 * @param {string} empty
 */
export async function pages(ask, first, empty) {
  const page = await ask(null);
  if (page.rows.length === 0) return [h("p", { class: "empty" }, empty)];
  const holder = first(page.rows);
  const foot = h("div", { class: "row" });
  let cursor = page.cursor;
  const more = h("button", {
    type: "button", onclick: async () => {
      more.disabled = true;
      try {
        const next = await ask(cursor);
        fill(/** @type {Element} */ (holder.querySelector("tbody") ?? holder), next.rows);
        cursor = next.cursor;
        if (cursor === null) more.remove();
      } catch (error) {
        show(foot, problemBox(error));
      } finally {
        more.disabled = false;
      }
    },
  }, "Show more");
  if (cursor !== null) foot.append(more);
  return [holder, foot];
}

/** A table whose rows come by page. @param {string} caption @param {Array<string | [string, string]>} columns @param {HTMLElement[]} rows @param {{tall?: boolean}} [how] */
export function rowTable(caption, columns, rows, how) {
  const made = table(caption, columns, [], how);
  fill(/** @type {Element} */ (made.querySelector("tbody")), rows);
  return made;
}

/** @param {Array<string | [string, string]>} columns @param {Child[]} cells */
export function tableRow(columns, cells) {
  return h("tr", null, cells.map((cell, i) => h("td", { class: Array.isArray(columns[i]) ? columns[i][1] : null }, cell)));
}

/**
 * A row whose last cell shows more beneath it, as wide as the table.
 * @param {Array<string | [string, string]>} columns @param {Child[]} cells all but the last @param {() => Child[]} more
 */
export function foldedRow(columns, cells, more) {
  /** @type {HTMLTableRowElement | null} */
  let open = null;
  const button = h("button", { type: "button", class: "quiet", "aria-expanded": "false", onclick: () => {
    if (open) open.remove();
    open = open ? null : h("tr", { class: "detail" }, h("td", { colspan: String(columns.length) }, h("div", { class: "stack" }, ...more())));
    if (open) row.after(open);
    button.setAttribute("aria-expanded", String(open !== null));
    button.textContent = open ? "Hide" : "Show";
  } }, "Show");
  const row = tableRow(columns, [...cells, button]);
  return row;
}

/** What an answer lacks. @param {any} completeness @returns {HTMLElement[]} */
export function completenessNotes(completeness) {
  if (!completeness) return [];
  /** @type {HTMLElement[]} */
  const notes = [];
  for (const one of [...(completeness.missing ?? []), ...(completeness.pending ?? [])]) {
    const when = one.span ? ` (${format.span(one.span.start, one.span.end)})` : "";
    notes.push(h("div", { class: "note-box warn-box" }, h("p", null, h("strong", null, one.why ?? one.what ?? ""), " ", one.detail ?? "", when),
      one.remedy ? h("p", { class: "remedy" }, words(one.remedy)) : null));
  }
  return notes;
}

/** A confirmation. @param {string} title @param {Child[]} content @param {string} yes @returns {Promise<boolean>} */
export function confirmed(title, content, yes) {
  return new Promise((done) => {
    const dialog = h("dialog", { class: "broad", "aria-label": title, onclose: () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    } }, h("form", { method: "dialog" }, h("h2", null, title), ...content,
      h("div", { class: "row" }, h("button", { value: "yes", class: "primary" }, yes), h("button", { value: "no" }, "Cancel"))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export { goTo, hrefTo };
