/**
 * The window timeline, drawn by hand on a canvas: windows by state, the slices beneath them, gaps, watermark
 * and cutoff. It asks for what is in view, so that 100,000 windows cost no more than a thousand.
 */
import { colour, h, settled } from "./dom.js";
import * as format from "./format.js";

/** @typedef {{start: number[], end: number[], state: number[], reason?: number[], revision: number[], rows?: Array<number | null>}} Windows */
/** @typedef {{id: string[], name: string[], start: number[], end: number[], arrival: number[], late: number[], declared: boolean[], accepted: number[], status: string[]}} Slices */
/**
 * @typedef {object} Timeline
 * @property {string[]} states
 * @property {string[]} reasons
 * @property {{start: string, end: string} | null} extent
 * @property {{start: string, end: string}} span
 * @property {Windows | null} windows
 * @property {any} buckets
 * @property {Slices | null} slices
 * @property {Array<[number, number]>} gaps
 * @property {string | null} watermark
 * @property {string} cutoff
 * @property {string} now
 * @property {number} total
 * @property {number} slices_total
 */

const [AXIS, BAND, GAP, LANE, LANES, ARRIVALS] = [24, 74, 9, 11, 7, 20]; // heights
const TOP = AXIS + 6;
const UNDER = TOP + BAND + 4; // gaps
const SLICES = UNDER + GAP + 8;
const STEPS = [1, 5, 10, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 90 * 86400, 365 * 86400].map((s) => s * 1e6);

export class TmTimeline extends HTMLElement {
  constructor() {
    super();
    /** @type {((from: string | null, to: string | null) => Promise<Timeline>) | null} */
    this.ask = null;
    /** @type {Timeline | null} */
    this.data = null;
    this.view = [0, 1]; // microseconds
    this.cursor = -1; // window or bucket under the keyboard
    /** @type {number | null} */
    this.picked = null; // the start of a window
    this.canvas = h("canvas", {
      tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Windows over time. Arrow keys move from window to window, Enter opens one, plus and minus zoom, Home shows all.",
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("p", { class: "hidden", role: "status" });
    this.refresh = settled(() => void this.load(), 140);
    this.repaint = () => requestAnimationFrame(() => this.paint());
    this.resized = new ResizeObserver(this.repaint);
    /** @type {Map<number, number>} */
    this.fingers = new Map();
  }

  connectedCallback() {
    this.classList.add("timeline");
    if (this.childElementCount === 0) {
      this.append(this.canvas, this.tip, this.said);
      this.listen();
    }
    this.resized.observe(this);
    document.addEventListener("tm-theme", this.repaint);
  }

  disconnectedCallback() {
    this.resized.disconnect();
    document.removeEventListener("tm-theme", this.repaint);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaY) >= Math.abs(event.deltaX)) return; // the page scrolls
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoomAt(this.timeAt(event.offsetX), Math.exp(event.deltaY * 0.004));
      else this.pan((event.deltaX / canvas.clientWidth) * (this.view[1] - this.view[0]));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.fingers.set(event.pointerId, event.offsetX);
      this.moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => {
      const was = this.fingers.delete(event.pointerId);
      canvas.classList.remove("dragging");
      if (was && this.moved < 5) this.open(this.at(event.offsetX));
    });
    canvas.addEventListener("pointercancel", (event) => void this.fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible")) this.point(this.cursor < 0 ? this.lastInView() : this.cursor); // not by a click
    });
    canvas.addEventListener("blur", this.repaint);
  }
  moved = 0;

  /** @param {PointerEvent} event */
  move(event) {
    const before = this.fingers.get(event.pointerId);
    if (before === undefined) {
      this.hover(event.offsetX, event.offsetY);
      return;
    }
    const dx = event.offsetX - before;
    this.moved += Math.abs(dx);
    if (this.fingers.size === 2) {
      const [other] = [...this.fingers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      const [old, now] = [Math.abs(before - other), Math.abs(event.offsetX - other)];
      if (old > 8 && now > 8) this.zoomAt(this.timeAt(other), old / now);
    } else if (this.moved >= 5) {
      this.canvas.classList.add("dragging");
      this.pan((-dx / this.canvas.clientWidth) * (this.view[1] - this.view[0]));
    }
    this.fingers.set(event.pointerId, event.offsetX);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const width = this.view[1] - this.view[0];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowRight: () => (event.shiftKey ? this.pan(width / 4) : this.point(this.cursor + 1)),
      ArrowLeft: () => (event.shiftKey ? this.pan(-width / 4) : this.point(this.cursor - 1)),
      "+": () => this.zoomAt(this.middle(), 0.5), "=": () => this.zoomAt(this.middle(), 0.5), "-": () => this.zoomAt(this.middle(), 2),
      Home: () => this.fit(), Enter: () => this.open(this.cursor), " ": () => this.open(this.cursor),
    };
    const done = keys[event.key];
    if (!done) return;
    event.preventDefault();
    done();
  }

  middle() {
    const found = this.bounds(this.cursor);
    return found ? (found[0] + found[1]) / 2 : (this.view[0] + this.view[1]) / 2;
  }

  size() {
    return this.data?.windows?.start.length ?? this.data?.buckets?.start.length ?? 0;
  }

  /** The last window or bucket that is in view. */
  lastInView() {
    let last = this.size() - 1;
    while (last > 0 && (this.bounds(last)?.[1] ?? 0) > this.view[1]) last--;
    return last;
  }

  /** @param {number} i @returns {[number, number] | null} */
  bounds(i) {
    const { windows, buckets } = this.data ?? {};
    if (windows && i >= 0 && i < windows.start.length) return [windows.start[i], windows.end[i]];
    if (buckets && i >= 0 && i < buckets.start.length) return [buckets.start[i], buckets.start[i] + buckets.width];
    return null;
  }

  /** @param {number} i */
  point(i) {
    const at = Math.max(0, Math.min(this.size() - 1, i));
    this.cursor = at;
    const found = this.bounds(at);
    if (!found) return;
    this.said.textContent = this.describe(at);
    const width = this.view[1] - this.view[0];
    if (found[0] < this.view[0] || found[1] > this.view[1]) this.setView(found[0] - width / 2, found[0] + width / 2);
    this.repaint();
  }

  /** @param {number} i */
  describe(i) {
    const found = this.bounds(i);
    const { data } = this;
    if (!found || !data) return "";
    const when = format.span(format.ofMicros(found[0]), format.ofMicros(found[1]));
    if (data.windows) {
      const reason = data.windows.reason && data.windows.reason[i] >= 0 ? ` (${data.reasons[data.windows.reason[i]]})` : "";
      const revision = data.windows.revision[i] ? `, revision ${data.windows.revision[i]}` : "";
      return `${when}: ${data.states[data.windows.state[i]]}${reason}${revision}`;
    }
    return `${when}: ` + data.states.filter((state) => data.buckets[state]?.[i]).map((state) => `${format.count(data.buckets[state][i])} ${state}`).join(", ");
  }

  /** Open a window, or look closer where they are many. @param {number} i */
  open(i) {
    const found = this.bounds(i);
    if (!found || !this.data) return;
    this.cursor = i;
    if (this.data.buckets) this.setView(found[0], found[1]);
    else {
      this.picked = found[0];
      this.dispatchEvent(new CustomEvent("pick", { detail: format.ofMicros(found[0]) }));
    }
    this.repaint();
  }

  fit() {
    if (this.data?.extent) this.setView(...whole({ ...this.data, span: this.data.extent }));
  }

  /** @param {number} shift microseconds */
  pan(shift) {
    this.setView(this.view[0] + shift, this.view[1] + shift);
  }

  /** @param {number} at @param {number} factor */
  zoomAt(at, factor) {
    const [from, to] = this.view;
    this.setView(at - (at - from) * factor, at + (to - at) * factor);
  }

  /** @param {number} from @param {number} to */
  setView(from, to) {
    const least = 1e6;
    const middle = (from + to) / 2;
    const half = Math.min(Math.max(to - from, least), 2e14 * 15) / 2;
    this.view = [middle - half, middle + half];
    this.repaint();
    this.refresh();
  }

  /** Ask for what is in view, and half as much on both sides; at first for everything. @param {boolean} [all] */
  async load(all = false) {
    if (!this.ask) return;
    const [from, to] = this.view;
    const margin = (to - from) / 2;
    const data = all ? await this.ask(null, null) : await this.ask(format.ofMicros(Math.round(from - margin)), format.ofMicros(Math.round(to + margin)));
    if (!this.isConnected) return;
    this.data = data;
    if (all) this.view = whole(data);
    if (this.cursor >= this.size()) this.cursor = this.size() - 1;
    this.dataset.loaded = data.buckets ? "buckets" : "windows";
    this.dispatchEvent(new CustomEvent("loaded", { detail: data }));
    this.repaint();
  }

  /** @param {number} x */
  timeAt(x) {
    return this.view[0] + (x / this.canvas.clientWidth) * (this.view[1] - this.view[0]);
  }

  /** The window or bucket at a position. @param {number} x */
  at(x) {
    const time = this.timeAt(x);
    const starts = this.data?.windows?.start ?? this.data?.buckets?.start ?? [];
    let [low, high] = [0, starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= time) low = middle + 1;
      else high = middle;
    }
    const found = this.bounds(low - 1);
    return found && time < found[1] ? low - 1 : -1;
  }

  /** @param {number} x @param {number} y */
  hover(x, y) {
    const text = y < UNDER ? this.describe(this.at(x)) : this.sliceAt(x, y);
    this.tip.hidden = text === "";
    if (text === "") return;
    this.tip.textContent = text;
    const room = this.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(4, Math.min(x + 12, room))}px`;
    this.tip.style.top = `${y + 14}px`;
  }

  /** @param {number} x @param {number} y */
  sliceAt(x, y) {
    const slices = this.data?.slices;
    const time = this.timeAt(x);
    if (!slices) return "";
    for (const { i, lane } of this.lanes()) {
      const top = SLICES + lane * LANE;
      if (y >= top && y < top + LANE && time >= slices.start[i] && time < slices.end[i]) {
        const late = slices.late[i] ? `, ${format.count(slices.late[i])} late` : "";
        return `${slices.name[i] || format.short(slices.id[i])}: ${format.count(slices.accepted[i])} accepted${late}, arrived ${format.instant(format.ofMicros(slices.arrival[i]))}`;
      }
    }
    return "";
  }

  /** Which lane each slice in view is drawn in; those that do not fit share the last. @returns {Array<{i: number, lane: number}>} */
  lanes() {
    const slices = this.data?.slices;
    if (!slices) return [];
    const [from, to] = this.view;
    const shown = slices.start.map((_, i) => i).filter((i) => slices.end[i] >= from && slices.start[i] <= to).sort((a, b) => slices.start[a] - slices.start[b]);
    const gap = ((to - from) / Math.max(1, this.canvas.clientWidth)) * 2;
    /** @type {number[]} */
    const ends = [];
    return shown.map((i) => {
      let lane = ends.findIndex((end) => end + gap <= slices.start[i]);
      if (lane < 0) lane = Math.min(ends.length, LANES - 1);
      ends[lane] = Math.max(ends[lane] ?? -Infinity, slices.end[i]);
      return { i, lane };
    });
  }

  paint() {
    const { canvas, data } = this;
    const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
    if (!width || !data) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    const x = (/** @type {number} */ t) => ((t - this.view[0]) / (this.view[1] - this.view[0])) * width;
    this.paintAxis(pen, x, width, height);
    if (data.windows) this.paintWindows(pen, x, width, data, data.windows);
    else if (data.buckets) this.paintBuckets(pen, x, width, data);
    this.paintGaps(pen, x, data);
    if (data.slices) this.paintSlices(pen, x, height, data.slices);
    this.paintLines(pen, x, height, data);
    this.paintCursor(pen, x);
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {number} width @param {number} height */
  paintAxis(pen, x, width, height) {
    const [from, to] = this.view;
    const step = STEPS.find((one) => ((to - from) / one) * 92 <= width) ?? STEPS[STEPS.length - 1];
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    let first = true;
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const left = Math.round(x(at)) + 0.5;
      pen.beginPath();
      pen.moveTo(left, AXIS - 4);
      pen.lineTo(left, height);
      pen.stroke();
      const text = format.ofMicros(at);
      const day = step >= 86400e6 || at % 86400e6 === 0;
      const clock = text.slice(11, step < 60e6 ? 19 : 16);
      pen.fillText(day ? text.slice(0, 10) : first ? `${text.slice(5, 10)} ${clock}` : clock, left + 4, 15);
      first = false;
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {number} width @param {Timeline} data @param {Windows} windows */
  paintWindows(pen, x, width, data, windows) {
    const fills = data.states.map(colour);
    const [ink, panel] = [colour("on-accent"), colour("bg")];
    for (let i = 0; i < windows.start.length; i++) {
      const left = x(windows.start[i]);
      const right = x(windows.end[i]);
      if (right < 0 || left > width) continue;
      pen.fillStyle = fills[windows.state[i]];
      const wide = right - left;
      pen.fillRect(left, TOP, Math.max(wide - (wide > 5 ? 1.5 : 0), 0.7), BAND);
      if (windows.revision[i] > 1 && wide > 5) { // built again
        pen.fillStyle = panel;
        pen.fillRect(left, TOP + BAND - 8, wide - 1.5, 2);
      }
      if (wide > 26 && windows.revision[i]) {
        pen.fillStyle = data.states[windows.state[i]] === "waiting" ? colour("ink") : ink;
        pen.fillText(`r${windows.revision[i]}`, left + 5, TOP + 15);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {number} width @param {Timeline} data */
  paintBuckets(pen, x, width, data) {
    const { buckets } = data;
    const fills = data.states.map(colour);
    for (let i = 0; i < buckets.start.length; i++) {
      const left = Math.floor(x(buckets.start[i]));
      const right = Math.floor(x(buckets.start[i] + buckets.width)); // whole pixels, so that neighbours touch
      if (right < 0 || left > width) continue;
      const total = data.states.reduce((sum, state) => sum + (buckets[state]?.[i] ?? 0), 0);
      let top = TOP;
      data.states.forEach((state, place) => {
        const tall = total ? (BAND * (buckets[state]?.[i] ?? 0)) / total : 0;
        const least = tall > 0 ? Math.max(tall, 2) : 0; // one failed window among thousands is seen
        pen.fillStyle = fills[place];
        pen.fillRect(left, top, Math.max(right - left - (right - left > 6 ? 1 : 0), 1), least);
        top += tall;
      });
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {Timeline} data */
  paintGaps(pen, x, data) {
    pen.fillStyle = colour("failed");
    for (const [start, end] of data.gaps) {
      const [left, right] = [x(start), Math.max(x(end), x(start) + 2)];
      pen.save();
      pen.beginPath();
      pen.rect(left, UNDER, right - left, GAP);
      pen.clip();
      pen.strokeStyle = colour("failed");
      pen.lineWidth = 1.4;
      for (let at = Math.max(left, -10) - GAP; at < Math.min(right, this.canvas.clientWidth + 10); at += 5) {
        pen.beginPath();
        pen.moveTo(at, UNDER + GAP);
        pen.lineTo(at + GAP, UNDER);
        pen.stroke();
      }
      pen.restore();
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {number} height @param {Slices} slices */
  paintSlices(pen, x, height, slices) {
    const fills = { plain: colour("accepted"), late: colour("late"), failed: colour("failed"), pending: colour("ready"), retracted: colour("duplicate") };
    for (const { i, lane } of this.lanes()) {
      const left = x(slices.start[i]);
      const wide = Math.max(x(slices.end[i]) - left, 1.5);
      const top = SLICES + lane * LANE;
      const kind = slices.status[i] === "accepted" ? (slices.late[i] ? "late" : "plain") : slices.status[i];
      pen.fillStyle = pen.strokeStyle = fills[/** @type {keyof typeof fills} */ (kind)] ?? fills.plain;
      if (slices.declared[i]) pen.fillRect(left, top, wide, LANE - 4);
      else { // the source did not say what it covers
        pen.globalAlpha = 0.35;
        pen.fillRect(left, top, wide, LANE - 4);
        pen.globalAlpha = 1;
        pen.strokeRect(left + 0.5, top + 0.5, Math.max(wide - 1, 0.5), LANE - 5);
      }
    }
    const base = height - 6;
    pen.globalAlpha = 0.8;
    for (let i = 0; i < slices.arrival.length; i++) {
      const at = x(slices.arrival[i]);
      if (at < -5 || at > this.canvas.clientWidth + 5) continue;
      pen.fillStyle = slices.late[i] ? fills.late : fills.plain;
      pen.beginPath();
      pen.moveTo(at, base - 9);
      pen.lineTo(at + 4, base);
      pen.lineTo(at - 4, base);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {number} height @param {Timeline} data */
  paintLines(pen, x, height, data) {
    /** @type {Array<[string | null, string, string]>} */
    const lines = [[data.watermark, "watermark", "accent"], [data.cutoff, "cutoff", "warn"]];
    lines.forEach(([when, name, token], row) => {
      if (!when) return;
      const at = Math.round(x(Date.parse(when) * 1000)) + 0.5;
      if (at < 0 || at > this.canvas.clientWidth) return;
      pen.strokeStyle = pen.fillStyle = colour(token);
      pen.lineWidth = 1.5;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      pen.moveTo(at, AXIS);
      pen.lineTo(at, height - ARRIVALS);
      pen.stroke();
      pen.setLineDash([]);
      const wide = pen.measureText(name).width;
      pen.fillText(name, at + 5 + wide > this.canvas.clientWidth ? at - wide - 5 : at + 5, height - ARRIVALS - 4 - row * 13);
    });
  }

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x */
  paintCursor(pen, x) {
    const windows = this.data?.windows;
    const chosen = windows && this.picked !== null ? windows.start.indexOf(this.picked) : -1;
    const focused = document.activeElement === this.canvas;
    for (const [i, token, show] of /** @type {Array<[number, string, boolean]>} */ ([[chosen, "ink", chosen >= 0], [this.cursor, "accent", focused]])) {
      const found = show ? this.bounds(i) : null;
      if (!found) continue;
      pen.strokeStyle = colour(token);
      pen.lineWidth = 2;
      pen.strokeRect(x(found[0]) - 1, TOP - 3, Math.max(x(found[1]) - x(found[0]), 3) + 0.5, BAND + 6);
    }
  }
}
customElements.define("tm-timeline", TmTimeline);

/** All windows; and the arrivals since, unless that would be a long time. @param {{span: {start: string, end: string}, now: string}} data */
function whole({ span, now }) {
  const [start, end] = [Date.parse(span.start), Date.parse(span.end)];
  const shown = Math.min(Math.max(end, Date.parse(now)), end + (end - start) * 0.25);
  return around(span.start, new Date(shown).toISOString());
}

/** A span with some room on both sides, in microseconds. @param {string} start @param {string} end @returns {[number, number]} */
function around(start, end) {
  const [from, to] = [Date.parse(start) * 1000, Date.parse(end) * 1000];
  const room = Math.max((to - from) * 0.02, 1e6);
  return [from - room, to + room];
}
