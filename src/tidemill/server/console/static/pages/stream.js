/** Stream: the window timeline, and why a window is in its state. */
import { Problem, download, get, path, post } from "../lib/api.js";
import { Page, h, show, words } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, confirmed, facts, goTo, hrefTo, into, pageHead, pages, panel, problemBox, rowTable, sliceLink, streamOf, streamPicker, table, tableRow } from "../lib/parts.js";
import { note } from "../lib/routes.js";
import { TmTimeline } from "../lib/timeline.js";
import { firstQuery } from "../lib/words.js";

const STATES = ["waiting", "ready", "queued", "building", "built", "final", "failed"];

export default class Stream extends Page {
  constructor() {
    super();
    this.detail = h("div", { class: "stack", "aria-live": "polite" });
    this.summary = h("p", { class: "soft small" });
    this.name = "";
    /** @type {string | undefined} */
    this.all = undefined; // what the stream has, in words
  }

  render() {
    void this.open();
  }

  async open() {
    try {
      const found = await streamOf(this);
      if (!found) {
        show(this, pageHead("Streams", ""), h("p", { class: "empty" }, "There are no streams yet. Declare one in tidemill.yaml."));
        return;
      }
      this.name = found.name;
      const described = found.all.find((one) => one.stream === found.name);
      show(this, pageHead(found.name, described.description ?? "", streamPicker(found.names, found.name, (name) => goTo(["stream", name]))),
        this.timelinePanel(), this.detail, this.streamFacts(described));
      await this.start();
    } catch (error) {
      if (!this.signal.aborted) show(this, pageHead("Streams", ""), problemBox(error));
    }
  }

  timelinePanel() {
    this.timeline = new TmTimeline();
    const timeline = this.timeline;
    timeline.ask = (from, to) => get(path`/v1/streams/${this.name}/timeline`, { from, to }, this.signal);
    timeline.addEventListener("pick", (event) => this.pick(/** @type {CustomEvent<string>} */ (event).detail));
    timeline.addEventListener("loaded", (event) => this.summarise(/** @type {CustomEvent} */ (event).detail));
    this.holder = panel("Windows", [...STATES.map((state) => h("span", { class: `key dot-${state}` }, state)), " "].flatMap((one) => [one, " "]), timeline,
      h("div", { class: "row" },
        h("div", { class: "seg", role: "group", "aria-label": "Zoom the timeline" },
          h("button", { type: "button", "aria-label": "Zoom in", onclick: () => timeline.zoomAt(timeline.middle(), 0.5) }, "+"),
          h("button", { type: "button", "aria-label": "Zoom out", onclick: () => timeline.zoomAt(timeline.middle(), 2) }, "−"),
          h("button", { type: "button", onclick: () => timeline.fit() }, "Show all")),
        this.summary, h("span", { class: "grow" }),
        h("span", { class: "key dot-accepted" }, "slice"), h("span", { class: "key dot-late" }, "with late rows"), h("span", { class: "key dot-gap" }, "not covered"), h("span", { class: "soft small" }, "▲ arrival")));
    this.holder.classList.add("stack");
    return this.holder;
  }

  async start() {
    const timeline = /** @type {TmTimeline} */ (this.timeline);
    try {
      await timeline.load(true);
    } catch (error) {
      if (this.signal.aborted) return;
      if (error instanceof Problem && error.status === 400) this.holder?.replaceWith(h("p", { class: "empty" }, error.message + ". " + error.hint));
      else this.holder?.replaceWith(problemBox(error));
      return;
    }
    const at = this.route.query.get("at");
    if (at) this.pick(at, true);
  }

  /** @param {import("../lib/timeline.js").Timeline} data */
  summarise(data) {
    this.all ??= [counted(data.total, "window"), data.slices ? counted(data.slices_total, "slice") : "", data.gaps.length ? counted(data.gaps.length, "gap") : ""].filter(Boolean).join(", ");
    this.summary.textContent = data.total === 0 && !data.extent ? "No windows yet." : this.all + (data.buckets ? "; zoom in to open one" : "");
  }

  /** @param {string} start @param {boolean} [centre] */
  pick(start, centre = false) {
    note(["stream", this.name], { at: start });
    const timeline = this.timeline;
    if (timeline) {
      timeline.picked = Date.parse(start) * 1000;
      if (centre && timeline.data?.buckets) timeline.setView(timeline.picked - 48 * 3600e6, timeline.picked + 48 * 3600e6);
      timeline.repaint();
    }
    void into(this.detail, this.signal, () => this.window(start));
  }

  /** @param {string} start */
  async window(start) {
    const one = await get(path`/v1/streams/${this.name}/windows/${start}`, {}, this.signal);
    const changes = h("div");
    return [
      h("section", { class: "panel stack", "aria-label": "Window" },
        h("div", { class: "row" }, h("h2", null, format.span(one.start, one.end)), chip(one.state), one.revision ? h("span", { class: "soft" }, `revision ${one.revision}`) : null,
          h("span", { class: "grow" }), ...this.actions(one)),
        why(one),
        facts([
          one.rows !== undefined ? ["Rows", format.count(one.rows)] : null,
          one.bytes !== undefined ? ["Size", format.bytes(one.bytes)] : null,
          one.built_at ? ["Built", format.instant(one.built_at)] : null,
          one.cutoff ? ["Cutoff", format.instant(one.cutoff)] : null,
          one.last_arrival ? ["Late slices count until", format.instant(one.last_arrival)] : null,
          one.attempts ? ["Attempts", format.count(one.attempts)] : null,
        ]),
        one.members ? h("div", { class: "stack" }, h("h3", null, `Slices (${one.members.length})`), this.members(one)) : null),
      one.revisions ? panel("Revisions", one.revisions.length > 1 ? "no file is ever changed: what came later is beside what was handed on before" : "",
        h("div", { class: "stack" }, one.revisions.length ? this.revisions(one, changes) : h("p", { class: "empty" }, "Not built yet."), one.revisions.length > 1 && one.members ? await this.travel(one, changes) : null, changes)) : null,
    ];
  }

  /** @param {any} one */
  actions(one) {
    const built = Boolean(one.revision);
    const where = path`/v1/streams/${this.name}/datasets/${one.start}`;
    const failed = h("span", { class: "bad small", role: "alert" });
    const guarded = (/** @type {() => Promise<void>} */ work) => async () => {
      failed.textContent = "";
      try {
        await work();
      } catch (error) {
        failed.textContent = error instanceof Problem ? `${error.message}${error.hint ? ": " + error.hint : ""}` : String(error);
      }
    };
    return [
      failed,
      built ? h("button", { type: "button", onclick: guarded(() => download(where, { format: "arrow" }, "dataset.arrow")) }, "Arrow") : null,
      built ? h("button", { type: "button", onclick: guarded(() => download(where, { format: "parquet" }, "dataset.parquet")) }, "Parquet") : null,
      one.state === "failed" ? h("button", { type: "button", onclick: guarded(() => this.retry(one)) }, "Try again") : null,
      one.members ? h("button", { type: "button", onclick: guarded(() => this.rebuild(one)) }, "Rebuild …") : null,
    ];
  }

  /** Show the plan; do it when it is confirmed. @param {any} one */
  async rebuild(one) {
    const late = one.members.some((/** @type {any} */ member) => member.ignored);
    const body = { from: one.start, to: one.end, include_late: late };
    const plan = await post(path`/v1/streams/${this.name}/rebuild`, { ...body, explain: true }, this.signal);
    const rows = plan.steps.map((/** @type {any} */ step) => [
      format.span(step.start, step.end), step.action, step.revision ? `r${step.revision} → r${step.next_revision}` : `r${step.next_revision ?? 1}`, format.count(step.slices), format.count(step.late), step.reason ?? ""]);
    const yes = await confirmed("Rebuild this window", [
      h("p", { class: "soft" }, late ? "Slices that came after the cutoff are included. This is what will be done:" : "This is what will be done:"),
      table("The plan", ["Window", "Action", "Revision", ["Slices", "num"], ["Late", "num"], "Why"], rows, { empty: "There is nothing to do: the dataset is what it should be." })], "Rebuild");
    if (!yes) return;
    const done = await post(path`/v1/streams/${this.name}/rebuild`, { ...body, explain: false }, this.signal);
    await this.again(one, `${format.count(done.queued)} queued; the next round builds it.`);
  }

  /** @param {any} one */
  async retry(one) {
    const done = await post(path`/v1/streams/${this.name}/retry`, { at: one.start }, this.signal);
    await this.again(one, `${format.count(done.queued)} queued; the next round tries again.`);
  }

  /** @param {any} one @param {string} said */
  async again(one, said) {
    this.all = undefined;
    await into(this.detail, this.signal, async () => [h("div", { class: "note-box good-box", role: "status" }, said), ...(await this.window(one.start))]);
    await this.timeline?.load();
  }

  /** @param {any} one */
  members(one) {
    const rows = one.members.map((/** @type {any} */ member) => [
      sliceLink(member.slice, this.name, member.name), h("span", { class: "nowrap" }, format.instant(member.arrival)), h("span", { class: "nowrap" }, member.covers ? format.span(member.covers.start, member.covers.end) : "–"),
      member.ignored ? chip("late", `ignored: ${member.ignored}`) : member.used ? chip("built", member.observed ? "in the dataset" : "to be built") : chip("other", "not used"),
      format.count(member.rejected)]);
    return table("Slices of the window", ["Slice", "Arrived", "Covers", "Used", ["Rejected", "num"]], rows, { empty: "No slice touches this window yet." });
  }

  /** @param {any} one @param {HTMLElement} changes */
  revisions(one, changes) {
    const rows = one.revisions.map((/** @type {any} */ revision) => [
      h("span", { class: "nowrap" }, `r${revision.revision} `, revision.current ? chip("current") : null), format.count(revision.rows), format.bytes(revision.bytes), format.count(revision.slices.length),
      h("span", { class: "mono soft", title: revision.hash }, format.short(revision.hash ?? "")),
      h("button", { type: "button", class: "quiet", onclick: () => void into(changes, this.signal, () => this.changes(one, revision.revision - 1, revision.revision)) },
        revision.revision > 1 ? `What changed since r${revision.revision - 1}` : "What it holds"),
      h("button", { type: "button", class: "quiet", onclick: () => void download(path`/v1/streams/${this.name}/datasets/${one.start}`, { revision: revision.revision }, "dataset.arrow") }, "Download")]);
    return table("Revisions", ["Revision", ["Rows", "num"], ["Size", "num"], ["Slices", "num"], "Made of", "", ""], rows);
  }

  /** A slider over the arrivals that made the revisions. @param {any} one @param {HTMLElement} changes */
  async travel(one, changes) {
    const where = path`/v1/streams/${this.name}/windows/${one.start}`;
    const ask = async (/** @type {string} */ at) => (await get(where, { as_of: at }, this.signal)).as_of;
    const stops = (await ask(new Date().toISOString())).revisions;
    const out = h("div", { role: "status", class: "stack" });
    const range = h("input", { type: "range", min: "0", max: String(stops.length - 1), value: String(stops.length - 1), "aria-label": "As of which arrival", oninput: () => say(), onchange: () => void into(out, this.signal, tell) });
    const stop = () => stops[Number(range.value)];
    const say = () => range.setAttribute("aria-valuetext", `revision ${stop().revision}, as of ${stop().since}`);
    const tell = async () => {
      const then = await ask(stop().since);
      const newest = stops[stops.length - 1].revision;
      const back = then.reaches_back_to ? ` Revisions that are kept reach back to ${format.instant(then.reaches_back_to)}.` : " All revisions are kept.";
      return h("div", { class: "row" }, h("strong", null, `As of ${format.instant(then.at)}: r${then.revision}`), h("span", { class: "soft" }, `${format.count(then.rows)} rows. ${then.changed ? `${format.count(then.slices_after.length)} ${then.slices_after.length === 1 ? "slice has" : "slices have"} come since.` : "It is still the same."}${back}`), h("span", { class: "grow" }),
        then.changed ? h("button", { type: "button", class: "quiet", onclick: () => void into(changes, this.signal, () => this.changes(one, then.revision, newest)) }, `What changed until r${newest}`) : null,
        h("button", { type: "button", class: "quiet", onclick: () => void download(path`/v1/streams/${this.name}/datasets/${one.start}`, { as_of: then.at }, "dataset.arrow") }, "Download"));
    };
    say();
    await into(out, this.signal, tell);
    return h("div", { class: "stack", role: "group", "aria-label": "Time travel" }, h("h3", null, "What was it at an earlier arrival?"), range, out);
  }

  /** @param {any} one @param {number} from @param {number} to */
  async changes(one, from, to) {
    const where = path`/v1/streams/${this.name}/windows/${one.start}/revisions`;
    const ask = (/** @type {string | null} */ cursor) => get(where, { from, to, cursor, limit: 50 }, this.signal);
    const first = await ask(null);
    const names = first.rows.length ? Object.keys(first.rows[0].row) : [];
    const columns = ["Change", ...names];
    const made = await pages(async (cursor) => {
      const page = cursor === null ? first : await ask(cursor);
      return { cursor: page.cursor, rows: page.rows.map((/** @type {any} */ change) => tableRow(columns, [chip(change.change === "added" ? "built" : "failed", change.change), ...names.map((name) => h("span", { class: "nowrap" }, format.value(change.row[name])))])) };
    }, (rows) => rowTable(`Rows that changed from revision ${from} to ${to}`, columns, rows), "The rows are the same.");
    return h("div", { class: "stack" }, h("h3", null, from ? `From r${from} to r${to}` : `What r${to} holds`),
      h("p", null, h("strong", { class: "good" }, `${format.count(first.added)} added`), ", ", h("strong", { class: first.removed ? "bad" : "soft" }, `${format.count(first.removed)} removed`), `, ${format.count(first.unchanged)} unchanged. `,
        first.slices?.added.length ? h("span", { class: "soft" }, `Because of ${first.slices.added.map(format.short).join(", ")}.`) : null,
        first.slices?.removed.length ? h("span", { class: "soft" }, ` Without ${first.slices.removed.map(format.short).join(", ")}.`) : null), ...made);
  }

  /** @param {any} described */
  streamFacts(described) {
    const metrics = (described.metrics ?? []).map((/** @type {any} */ one) => [
      h("a", { href: hrefTo(["explore"], { q: firstQuery(described.stream, one) }) }, one.metric), one.kind, one.dimensions.join(", ") || "–", one.values.join(", ")]);
    return panel("Metrics", "what can be asked", table("Metrics", ["Metric", "Kind", "Dimensions", "Values"], metrics, { empty: "This stream declares no metrics." }));
  }
}
customElements.define("tm-stream", Stream);

/** Why a window is in its state, and what would end it. @param {any} one */
function why(one) {
  const wrong = one.state === "failed";
  const waits = one.state === "waiting" || one.reason;
  const next = one.next?.what ? h("p", { class: "remedy" }, words(sentence(one.next.what))) : null;
  if (!wrong && !waits && !next && !one.error) return null;
  return h("div", { class: `note-box ${wrong ? "bad-box" : waits ? "warn-box" : ""}` },
    h("p", null, sentence(one.detail || one.error || one.reason || STATE_WORDS[one.state] || one.state)), next, one.remedy && one.remedy !== one.next?.what ? h("p", { class: "remedy soft" }, words(sentence(one.remedy))) : null);
}

/** @param {number} n @param {string} what */
function counted(n, what) {
  return `${format.count(n)} ${what}${n === 1 ? "" : "s"}`;
}

/** @param {string} text */
function sentence(text) {
  const whole = text.replace(/(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::00)?(:\d\d(?:\.\d+)?)?Z/g, "$1 $2$3");
  return whole.charAt(0).toUpperCase() + whole.slice(1) + (/[.!?…]$/.test(whole) ? "" : ".");
}

/** @type {Record<string, string>} */
const STATE_WORDS = {
  ready: "It may be built: the next round queues it.", queued: "It waits for a builder.", building: "A builder has it.",
  built: "Its dataset is current.", final: "Nothing that arrives changes it any more.",
};

