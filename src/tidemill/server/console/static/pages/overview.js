/** Overview: every stream with its rate, lag, outcomes, queue and failures, as they change. */
import { Problem, get, listen, path } from "../lib/api.js";
import { chart } from "../lib/charts.js";
import { Page, h, show, words } from "../lib/dom.js";
import * as format from "../lib/format.js";
import { chip, facts, hrefTo, loading, pageHead, problemBox } from "../lib/parts.js";

const OUTCOMES = ["accepted", "duplicate", "conflict", "rejected", "late"];
/** What a slice is stacked of: each of its records once. @type {Array<[string, string, (counts: any) => number]>} */
const STACKED = [
  ["accepted in time", "accepted", (counts) => Number(counts.accepted) - Number(counts.late)], ["accepted late", "late", (counts) => Number(counts.late)],
  ...["duplicate", "conflict", "rejected"].map((name) => /** @type {[string, string, (counts: any) => number]} */ ([name, name, (counts) => Number(counts[name])])),
];
const SLICES = 60; // of the chart: the newest
const FEW = 20; // places of the chart, be there fewer slices
const SAMPLES = 600; // of the rate
const AGAIN = 5_000; // milliseconds until rate and lag, which are no news, are asked for again

/** @typedef {{at: number, rate: number}} Sample */

export default class Overview extends Page {
  constructor() {
    super();
    this.problems = h("div", { class: "stack", role: "status", "aria-label": "Problems" });
    this.streams = h("div", { class: "stack" }, loading());
    this.live = h("span", { class: "chip", role: "status" }, "connecting");
    /** @type {Map<string, StreamPanel>} */
    this.panels = new Map();
  }

  render() {
    show(this, pageHead("Overview", "What arrives, how far it has come, and what is wrong.", this.live), this.problems, this.streams);
    void listen("/v1/overview/events", this.signal, (kind, data) => {
      if (kind === "overview") this.update(format.parseJson(data));
    }, (problem) => this.connected(problem));
    const timer = setInterval(() => {
      if (!document.hidden && this.panels.size > 0) get("/v1/overview", {}, this.signal).then((said) => this.update(said), () => {});
    }, AGAIN);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** @param {Problem | null} problem */
  connected(problem) {
    this.live.className = `chip ${problem ? "dot-failed" : "dot-built"}`;
    this.live.textContent = problem ? "not connected" : "live";
    if (!problem) return;
    show(this.problems, problemBox(problem));
    if (this.panels.size === 0) show(this.streams);
  }

  /** @param {any} said */
  update(said) {
    this.showProblems([...(said.problems ?? []), ...said.streams.flatMap((/** @type {any} */ one) => (one.problems ?? []).map((/** @type {any} */ problem) => ({ ...problem, stream: one.stream })))]);
    if (said.streams.length === 0) {
      show(this.streams, h("p", { class: "empty" }, "There are no streams yet. Declare one in tidemill.yaml."));
      return;
    }
    if (this.panels.size === 0) show(this.streams);
    for (const one of said.streams) {
      let found = this.panels.get(one.stream);
      if (!found) {
        found = new StreamPanel(one, this.signal);
        this.panels.set(one.stream, found);
        this.streams.append(found.element);
      }
      found.update(one, Date.parse(said.now));
    }
  }

  /** @param {any[]} problems */
  showProblems(problems) {
    const text = JSON.stringify(problems);
    if (text === this.shown) return; // so that it is read out once
    this.shown = text;
    show(this.problems, problems.length === 0 ? h("div", { class: "note-box good-box" }, "No problems.") : problems.map((one) =>
      h("div", { class: "note-box bad-box" }, h("p", null, h("strong", null, one.stream ? `${one.stream}: ` : ""), one.detail), one.remedy ? h("p", { class: "remedy" }, words(one.remedy)) : null)));
  }
  shown = "";
}
customElements.define("tm-overview", Overview);

/** One stream: its facts beside its charts, which stay while their numbers change. */
class StreamPanel {
  /** @param {any} one @param {AbortSignal} signal */
  constructor(one, signal) {
    this.name = one.stream;
    this.signal = signal;
    this.state = h("span");
    this.body = h("div", { class: "stack" });
    this.charts = h("div", { class: "split" });
    /** @type {Sample[]} */
    this.samples = [];
    this.counted = "";
    /** @type {import("../lib/charts.js").TmChart | null} */
    this.slices = null;
    /** @type {import("../lib/charts.js").TmChart | null} */
    this.rate = null;
    this.element = h("article", { class: "panel stack", "aria-label": one.stream },
      h("div", { class: "row" }, h("h2", null, h("a", { href: hrefTo(["stream", one.stream]) }, one.stream)), h("span", { class: "soft small" }, one.description ?? ""), h("span", { class: "grow" }), this.state),
      h("div", { class: "beside" }, this.body, this.charts));
  }

  /** @param {any} one @param {number} now */
  update(one, now) {
    const wrong = (one.problems ?? []).length > 0;
    show(this.state, chip(wrong ? "failed" : "built", wrong ? "needs attention" : "healthy"));
    show(this.body, numbers(one));
    this.samples.push({ at: now, rate: Number(one.rate?.per_second ?? 0) });
    if (this.samples.length > SAMPLES) this.samples.shift();
    if (this.rate) this.rate.spec = rateSpec(this.name, this.samples);
    const counted = JSON.stringify([one.outcomes, one.slices]);
    if (counted === this.counted) return;
    this.counted = counted;
    if (!one.not_known) void this.newest();
    else if (!this.rate) {
      this.rate = chart(rateSpec(this.name, this.samples), "low");
      show(this.charts, h("div", null, h("h3", { class: "soft" }, "Accepted events per second, of yours"), this.rate));
    }
  }

  /** The outcomes of the newest slices. */
  async newest() {
    try {
      const said = await get(path`/v1/streams/${this.name}/ledger`, { limit: SLICES }, this.signal);
      const spec = sliceSpec(this.name, said.slices.filter((/** @type {any} */ one) => one.counts).reverse());
      if (this.slices) {
        this.slices.spec = spec;
        return;
      }
      this.slices = chart(spec, "low");
      this.rate = chart(rateSpec(this.name, this.samples), "low");
      show(this.charts, h("div", null, h("h3", { class: "soft" }, "Outcomes of the newest slices"), this.slices), h("div", null, h("h3", { class: "soft" }, "Accepted events per second"), this.rate));
    } catch (error) {
      if (this.signal.aborted) return;
      if (error instanceof Problem && error.status === 403) this.charts.remove();
      else show(this.charts, problemBox(error));
    }
  }
}

/** @param {string} stream @param {any[]} slices @returns {import("../lib/charts.js").Spec} */
function sliceSpec(stream, slices) {
  const blank = Array.from({ length: Math.max(0, FEW - slices.length) }, (_, i) => " ".repeat(i + 1));
  const none = blank.map(() => 0);
  return {
    kind: "stack", label: `Outcomes of the newest slices of ${stream}`, height: 160,
    names: [...blank, ...slices.map((one) => `${one.name || format.short(one.id)} · ${format.instant(one.arrival)} · ${one.seq ?? one.id}`)],
    series: STACKED.map(([name, colour, of]) => ({ name, colour, values: [...none, ...slices.map((one) => of(one.counts))], texts: [...blank, ...slices.map((one) => format.count(of(one.counts)))] })),
  };
}

/** @param {string} stream @param {Sample[]} samples @returns {import("../lib/charts.js").Spec} */
function rateSpec(stream, samples) {
  const first = samples[0].at;
  const last = samples[samples.length - 1].at;
  return {
    kind: "line", label: `Accepted events per second of ${stream}`, height: 160, x: samples.map((one) => one.at), span: [Math.min(first, last - 60_000), last + 1000],
    series: [{ name: "events per second", colour: "accepted", values: samples.map((one) => one.rate), texts: samples.map((one) => format.few(one.rate)) }],
  };
}

/** @param {any} one */
function numbers(one) {
  const { outcomes, windows, slices } = one;
  return [
    facts([
      one.rate ? ["Events per second", format.few(one.rate.per_second)] : null,
      ["Watermark lag", format.duration(one.lag)],
      slices ? ["Slices pending", format.count(slices.pending)] : null,
      windows ? ["Windows queued", format.count((windows.queued ?? 0) + (windows.building ?? 0))] : null,
    ], true),
    outcomes ? h("div", { class: "row" }, OUTCOMES.filter((name) => outcomes[name] !== undefined).map((name) => h("a", { class: `key dot-${name}`, href: outcomeHref(one.stream, name) }, `${format.count(outcomes[name])} ${name}`))) : null,
    facts([
      ["Watermark", h("span", { title: one.watermark ?? "" }, format.instant(one.watermark?.replace(/\.\d+Z$/, "Z")))],
      one.newest_arrival !== undefined ? ["Newest arrival", format.instant(one.newest_arrival?.replace(/\.\d+Z$/, "Z"))] : null,
      one.freshness ? ["Rollups up to", format.instant(one.freshness.rollups)] : null,
      one.freshness?.datasets ? ["Datasets up to", format.instant(one.freshness.datasets)] : null,
      slices?.failed ? ["Slices failed", h("span", { class: "bad" }, format.count(slices.failed))] : null,
      windows?.failed ? ["Windows failed", h("span", { class: "bad" }, format.count(windows.failed))] : null,
    ]),
    one.not_known ? h("p", { class: "soft small" }, "These are your own events. Duplicates, late events, slices and windows are counted for all tenants of this stream together, and are not shown to one.") : null,
  ];
}

/** @param {string} stream @param {string} outcome */
function outcomeHref(stream, outcome) {
  if (outcome === "late") return hrefTo(["ledger", stream], { view: "late" });
  const refused = outcome === "conflict" || outcome === "rejected";
  return hrefTo(["ledger", stream], refused ? { view: "quarantine", outcome } : { outcome });
}
