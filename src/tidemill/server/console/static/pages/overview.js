/** Overview: every stream with its rate, lag, outcomes, queue and failures, as they change. */
import { Problem, get, listen, path } from "../lib/api.js";
import { chart, legend } from "../lib/charts.js";
import { Page, h, show, words } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, facts, hrefTo, loading, pageHead, panel, problemBox } from "../lib/parts.js";

const OUTCOMES = ["accepted", "duplicate", "conflict", "rejected"];
const SLICES = 60; // of the chart: the newest
const SAMPLES = 600; // of the rate, one a second at most

/** @typedef {{at: number, rate: number, lag: number | null}} Sample */

export default class Overview extends Page {
  constructor() {
    super();
    this.problems = h("div", { class: "stack", role: "status", "aria-label": "Problems" });
    this.streams = h("div", { class: "tiles" }, loading());
    this.live = h("span", { class: "chip", role: "status" }, "connecting");
    this.newest = h("div", { class: "stack" });
    /** @type {Map<string, Sample[]>} */
    this.samples = new Map();
    /** @type {Map<string, {box: HTMLElement, body: HTMLElement, slices: any, rate: any, note: HTMLElement}>} */
    this.charts = new Map();
    /** @type {Map<string, string>} */
    this.seen = new Map();
  }

  render() {
    show(this, pageHead("Overview", "What arrives, how far it has come, and what is wrong.", this.live), this.problems, this.streams, this.newest);
    void listen("/v1/overview/events", this.signal, (kind, data) => {
      if (kind === "overview") this.update(format.parseJson(data));
    }, (problem) => this.connected(problem));
  }

  /** @param {Problem | null} problem */
  connected(problem) {
    this.live.className = `chip ${problem ? "dot-failed" : "dot-built"}`;
    this.live.textContent = problem ? "not connected" : "live";
    if (!problem) return;
    show(this.problems, problemBox(problem));
    if (this.charts.size === 0) show(this.streams);
  }

  /** @param {any} said */
  update(said) {
    const problems = [...said.problems, ...said.streams.flatMap((/** @type {any} */ one) => one.problems.map((/** @type {any} */ problem) => ({ ...problem, stream: one.stream })))];
    show(this.problems, problems.length === 0 ? h("div", { class: "note-box good-box" }, "No problems.") : problems.map((one) =>
      h("div", { class: "note-box bad-box" }, h("p", null, h("strong", null, one.stream ? `${one.stream}: ` : ""), one.detail), one.remedy ? h("p", { class: "remedy" }, words(one.remedy)) : null)));
    if (said.streams.length === 0) {
      show(this.streams, h("p", { class: "empty" }, "There are no streams yet. Declare one in tidemill.yaml."));
      return;
    }
    show(this.streams, said.streams.map((/** @type {any} */ one) => card(one)));
    for (const one of said.streams) this.chart(one, Date.parse(said.now));
  }

  /** @param {any} one @param {number} now */
  chart(one, now) {
    if (!one.outcomes) return;
    const samples = this.samples.get(one.stream) ?? [];
    samples.push({ at: now, rate: Number(one.rate?.per_second ?? 0), lag: one.lag_us === null ? null : Number(one.lag_us) / 1e6 });
    if (samples.length > SAMPLES) samples.shift();
    this.samples.set(one.stream, samples);
    let found = this.charts.get(one.stream);
    if (!found) {
      const body = h("div", { class: "split" });
      const note = h("span", { class: "note" });
      const box = panel(one.stream, note, body, legend(OUTCOMES.map((name) => ({ name, colour: name }))));
      found = { box, body, slices: null, rate: null, note };
      this.charts.set(one.stream, found);
      this.newest.append(box);
    }
    const spec = rateSpec(one.stream, samples);
    if (found.rate) found.rate.spec = spec;
    const counted = JSON.stringify([one.outcomes, one.slices]);
    if (this.seen.get(one.stream) !== counted) {
      this.seen.set(one.stream, counted);
      void this.slices(one.stream, spec);
    }
  }

  /** The outcomes of the newest slices. @param {string} stream @param {import("../lib/charts.js").Spec} rate */
  async slices(stream, rate) {
    const found = this.charts.get(stream);
    if (!found) return;
    try {
      const said = await get(path`/v1/streams/${stream}/ledger`, { limit: SLICES }, this.signal);
      const newest = said.slices.filter((/** @type {any} */ one) => one.counts).reverse();
      found.note.textContent = newest.length ? `outcomes of the newest ${newest.length} slices, and accepted events per second` : "nothing has arrived yet";
      const spec = sliceSpec(stream, newest);
      if (found.slices) found.slices.spec = spec;
      else {
        found.slices = chart({ ...spec, height: 170 }, "low");
        found.rate = chart(rate, "low");
        show(found.body, found.slices, found.rate);
      }
    } catch (error) {
      if (this.signal.aborted) return;
      if (error instanceof Problem && error.status === 403) found.box.remove();
      else show(found.body, problemBox(error));
    }
  }
}
customElements.define("tm-overview", Overview);

/** @param {string} stream @param {any[]} slices @returns {import("../lib/charts.js").Spec} */
function sliceSpec(stream, slices) {
  return {
    kind: "stack", label: `Outcomes of the newest slices of ${stream}`, height: 170,
    names: slices.map((one) => `${one.name || format.short(one.id)} · ${format.instant(one.arrival)} · ${one.seq ?? ""}`),
    series: OUTCOMES.map((name) => ({ name, colour: name, values: slices.map((one) => Number(one.counts[name])), texts: slices.map((one) => format.count(one.counts[name])) })),
  };
}

/** @param {string} stream @param {Sample[]} samples @returns {import("../lib/charts.js").Spec} */
function rateSpec(stream, samples) {
  const first = samples[0].at;
  const last = samples[samples.length - 1].at;
  return {
    kind: "line", label: `Accepted events per second of ${stream}`, height: 170, x: samples.map((one) => one.at), span: [Math.min(first, last - 60_000), last + 1000],
    series: [{ name: "events per second", colour: "accepted", values: samples.map((one) => one.rate), texts: samples.map((one) => format.few(one.rate)) }],
  };
}

/** @param {any} one */
function card(one) {
  const outcomes = one.outcomes;
  const windows = one.windows ?? null;
  return h("article", { class: "panel stack", "aria-label": one.stream },
    h("div", { class: "row" }, h("h2", null, h("a", { href: hrefTo(["stream", one.stream]) }, one.stream)), h("span", { class: "grow" }), chip(one.problems.length ? "failed" : "built", one.problems.length ? "needs attention" : "healthy")),
    one.description ? h("p", { class: "soft small" }, one.description) : null,
    facts([
      one.rate ? ["Events per second", format.few(one.rate.per_second)] : null,
      ["Behind the clock", format.duration(one.lag)],
      one.slices ? ["Slices pending", format.count(one.slices.pending)] : null,
      windows ? ["Windows queued", format.count((windows.queued ?? 0) + (windows.building ?? 0))] : null,
    ], true),
    outcomes ? h("div", { class: "row" }, [...OUTCOMES, "late"].map((name) => h("a", { class: `key dot-${name}`, href: outcomeHref(one.stream, name) }, `${format.count(outcomes[name])} ${name}`))) : null,
    facts([
      ["Watermark", format.instant(one.watermark)],
      one.newest_arrival !== undefined ? ["Newest arrival", format.instant(one.newest_arrival)] : null,
      one.freshness ? ["Rollups up to", format.instant(one.freshness.rollups)] : null,
      one.freshness ? ["Datasets up to", format.instant(one.freshness.datasets)] : null,
      one.slices?.failed ? ["Slices failed", h("span", { class: "bad" }, format.count(one.slices.failed))] : null,
      windows?.failed ? ["Windows failed", h("span", { class: "bad" }, format.count(windows.failed))] : null,
    ]));
}

/** @param {string} stream @param {string} outcome */
function outcomeHref(stream, outcome) {
  if (outcome === "late") return hrefTo(["ledger", stream], { view: "late" });
  const refused = outcome === "conflict" || outcome === "rejected";
  return hrefTo(["ledger", stream], refused ? { view: "quarantine", outcome } : { outcome });
}
