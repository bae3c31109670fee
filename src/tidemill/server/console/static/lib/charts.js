/**
 * Charts, drawn by Bokeh from the files of its wheel. What is missing or may still change is drawn into them.
 */
import { colour, h, show } from "./dom.js";
import * as format from "./format.js";

/** @typedef {{name: string, values: Array<number | null>, texts: string[], colour?: string, ghost?: boolean}} Series */
/**
 * @typedef {object} Spec
 * @property {"line" | "bars" | "stack" | "heat" | "matrix"} kind
 * @property {string} label what it shows, for those who do not see it
 * @property {number[]} [x] milliseconds
 * @property {string[]} [names] instead of x: one bar each
 * @property {number} [width] milliseconds of a bar
 * @property {Series[]} [series]
 * @property {[number, number]} [span] milliseconds
 * @property {Array<{start: number, end: number, what: string}>} [missing] time without numbers
 * @property {number | null} [through] from here on, later data may still arrive
 * @property {Array<{left: number, right: number, bottom: number, top: number, value: number, text: string}>} [cells]
 * @property {boolean} [log] whether y is a log scale
 * @property {Array<{x: string, y: string, value: number, text: string}>} [pairs]
 * @property {number} [height]
 * @property {(point: number, series: number) => void} [pick]
 */

const SERIES = 8;
/** @type {Promise<any> | null} */
let library = null;

/** The chart library, loaded when the first chart is drawn, after what is there already was painted: it takes a while. @returns {Promise<any>} */
export function bokeh() {
  library ??= painted().then(() => script("bokeh.min.js")).then(() => script("bokeh-api.min.js")).then(() => {
    const found = /** @type {any} */ (window).Bokeh;
    found.logger.set_level("error");
    return found;
  });
  library.catch(() => (library = null));
  return library;
}

/** When what was changed is on the screen; soon, where the page is hidden. @returns {Promise<void>} */
function painted() {
  return new Promise((done) => {
    const soon = setTimeout(done, 300);
    requestAnimationFrame(() => requestAnimationFrame(() => {
      clearTimeout(soon);
      setTimeout(done, 0);
    }));
  });
}

/** @param {string} name of a file beside these @returns {Promise<void>} */
function script(name) {
  const src = new URL(`../${name}`, import.meta.url).href;
  return new Promise((done, failed) => {
    document.head.append(h("script", { src, onload: () => done(), onerror: () => failed(new Error(`cannot load ${src}`)) }));
  });
}

/** The colour of a series. @param {number} place */
export function seriesColour(place) {
  return `s${place % SERIES}`;
}

/** A chart: set `spec`, and again to change it. */
export class TmChart extends HTMLElement {
  constructor() {
    super();
    /** @type {Spec | null} */
    this.given = null;
    /** @type {any} */
    this.view = null;
    /** @type {any} */
    this.figure = null;
    /** @type {any[]} */
    this.sources = [];
    this.turn = 0;
    this.redraw = () => {
      if (this.given) void this.draw(this.given);
    };
  }

  connectedCallback() {
    this.classList.add("chart");
    document.addEventListener("tm-theme", this.redraw);
    if (this.given && !this.view) this.redraw();
  }

  disconnectedCallback() {
    document.removeEventListener("tm-theme", this.redraw);
    this.clear();
  }

  clear() {
    this.view?.remove?.();
    this.view = null;
    this.sources = [];
  }

  /** @param {Spec} spec */
  set spec(spec) {
    const before = this.given;
    this.given = spec;
    if (this.view && before && canUpdate(before, spec)) this.update(spec);
    else if (this.isConnected) void this.draw(spec);
  }

  /** What is drawn: the columns of every source. */
  get drawn() {
    return this.sources.map((source) => ({ ...source.data }));
  }

  /** @param {Spec} spec */
  async draw(spec) {
    const turn = ++this.turn;
    let library;
    try {
      library = await bokeh();
    } catch {
      show(this, h("p", { class: "empty" }, "The chart library is not installed: pip install bokeh. The table below has the numbers."));
      return;
    }
    if (turn !== this.turn || !this.isConnected) return;
    this.clear();
    const { figure, sources } = drawn(library, spec);
    const host = h("div", { role: "img", "aria-label": spec.label });
    show(this, host);
    this.figure = figure;
    this.sources = sources;
    this.view = await library.Plotting.show(figure, host);
    if (turn !== this.turn) return;
    this.dataset.drawn = String(turn);
  }

  /** New numbers in the same chart. @param {Spec} spec */
  update(spec) {
    if (spec.names) this.figure.x_range.factors = spec.names;
    else if (spec.span) Object.assign(this.figure.x_range, padded(spec.span));
    if (spec.kind === "stack") this.sources[0].data = columns(spec);
    else spec.series?.forEach((series, i) => (this.sources[i].data = lineColumns(spec, series)));
  }

  /** Make the span wider or narrower; 0: as it was. @param {number} factor */
  zoom(factor) {
    const range = this.figure?.x_range;
    if (!range || range.factors || !this.given?.span) return;
    if (factor === 0) {
      Object.assign(range, padded(this.given.span));
      return;
    }
    const middle = (range.start + range.end) / 2;
    const half = ((range.end - range.start) / 2) * factor;
    [range.start, range.end] = [middle - half, middle + half];
  }
}
customElements.define("tm-chart", TmChart);

/** @param {Spec} spec @param {string} [className] @returns {TmChart} */
export function chart(spec, className) {
  const made = /** @type {TmChart} */ (document.createElement("tm-chart"));
  if (className) made.classList.add(className);
  made.spec = spec;
  return made;
}

/** @param {Spec} before @param {Spec} after */
function canUpdate(before, after) {
  const shape = (/** @type {Spec} */ one) => JSON.stringify([one.kind, !one.names, one.series?.map((series) => series.name), one.missing, one.through]);
  return (after.kind === "line" || after.kind === "stack") && shape(before) === shape(after);
}

/** @param {any} B @param {Spec} spec */
function drawn(B, spec) {
  const figure = blank(B, spec);
  const sources = { line: lines, bars, stack, heat, matrix }[spec.kind](B, figure, spec);
  annotate(B, figure, spec);
  return { figure, sources };
}

/** @param {any} B @param {Spec} spec */
function blank(B, spec) {
  /** @type {Record<string, any>} */
  const how = {
    height: spec.height ?? 290, sizing_mode: "stretch_width", tools: [], toolbar_location: null, min_border_left: 8, min_border_right: 12,
    background_fill_color: null, border_fill_color: null, outline_line_color: null, output_backend: "canvas",
  };
  if (spec.kind === "matrix" && spec.pairs) {
    how.x_range = new B.FactorRange({ factors: [...new Set(spec.pairs.map((pair) => pair.x))] });
    how.y_range = new B.FactorRange({ factors: [...new Set(spec.pairs.map((pair) => pair.y))].reverse() });
  } else if (spec.names) how.x_range = new B.FactorRange({ factors: spec.names });
  else {
    how.x_axis_type = "datetime";
    if (spec.span) how.x_range = new B.Range1d(padded(spec.span));
  }
  if (spec.log) how.y_axis_type = "log";
  else if (spec.kind !== "heat" && spec.kind !== "matrix") how.y_range = heights(B, spec);
  const figure = B.Plotting.figure(how);
  style(B, figure);
  if (how.height < 200 || innerWidth < 600) figure.below[0].ticker.desired_num_ticks = 3; // there is little room
  if (!spec.names && spec.kind !== "matrix") {
    const pan = new B.PanTool({ dimensions: "width" });
    const wheel = new B.WheelZoomTool({ dimensions: "width", modifiers: { ctrl: true } });
    figure.add_tools(pan, wheel);
    figure.toolbar.active_drag = pan;
    figure.toolbar.active_scroll = wheel;
  }
  return figure;
}

/** From 0, unless something lies below it. @param {any} B @param {Spec} spec */
function heights(B, spec) {
  const below = (spec.series ?? []).some((series) => series.values.some((value) => value !== null && value < 0));
  return below ? new B.DataRange1d({ range_padding: 0.08 }) : new B.DataRange1d({ start: 0, range_padding: 0.08 });
}

/** A span with some room on both sides. @param {[number, number]} span */
function padded([start, end]) {
  const room = (end - start) * 0.012;
  return { start: start - room, end: end + room };
}

/** @param {any} B @param {any} figure */
function style(B, figure) {
  const [soft, line] = [colour("soft"), colour("line")];
  const font = "system-ui, sans-serif";
  const [x, y] = [figure.below[0], figure.left[0]];
  for (const axis of [x, y]) {
    Object.assign(axis, {
      axis_line_color: line, major_tick_line_color: null, minor_tick_line_color: null, major_label_text_color: soft,
      major_label_text_font: font, major_label_text_font_size: "11px",
    });
  }
  for (const grid of figure.center.filter((/** @type {any} */ one) => one instanceof B.Grid)) Object.assign(grid, { grid_line_color: line, grid_line_alpha: 0.7 });
  if (x instanceof B.DatetimeAxis) x.formatter = new B.DatetimeTickFormatter(
    { seconds: "%H:%M:%S", minsec: "%H:%M:%S", minutes: "%H:%M", hourmin: "%H:%M", hours: "%H:%M", days: "%Y-%m-%d", months: "%Y-%m", years: "%Y", strip_leading_zeros: [], context: null });
  if (y instanceof B.LinearAxis && !(y instanceof B.LogAxis)) y.formatter = new B.NumeralTickFormatter({ format: "0,0[.]0[000]" });
}

/** @param {Spec} spec @param {Series} series */
function lineColumns(spec, series) {
  const keep = series.values.map((_, i) => i);
  return { x: keep.map((i) => spec.x?.[i] ?? NaN), y: series.values.map((one) => (one === null ? NaN : one)), text: series.texts, when: keep.map((i) => whenOf(spec, i)) };
}

/** @param {Spec} spec @param {number} i */
function whenOf(spec, i) {
  if (spec.names) return spec.names[i];
  const at = spec.x?.[i];
  return at === undefined ? "" : format.instant(new Date(at).toISOString().replace(".000Z", "Z"));
}

/** @param {any} B @param {any} figure @param {Spec} spec */
function lines(B, figure, spec) {
  return (spec.series ?? []).map((series, i) => {
    const source = new B.ColumnDataSource({ data: lineColumns(spec, series) });
    const ink = colour(series.colour ?? seriesColour(i));
    const at = { x: { field: "x" }, y: { field: "y" }, source };
    figure.line({ ...at, line_color: ink, line_width: series.ghost ? 1.5 : 2, line_dash: series.ghost ? [4, 4] : [], line_alpha: series.ghost ? 0.6 : 1 });
    const many = series.values.length > 150;
    const dots = figure.scatter({ ...at, size: many ? 3 : 6, fill_color: ink, line_color: null, fill_alpha: series.ghost ? 0.4 : 1, nonselection_fill_alpha: 1 });
    if (!series.ghost) tools(B, figure, source, dots, [["", series.name], ["", "@when"], ["", "@text"]], (point) => spec.pick?.(point, i));
    return source;
  });
}

/** @param {any} B @param {any} figure @param {any} source @param {any} glyph @param {string[][]} tips @param {(point: number) => void} [pick] */
function tools(B, figure, source, glyph, tips, pick) {
  figure.add_tools(new B.HoverTool({ renderers: [glyph], tooltips: tips.map(([name, text]) => [name, text.startsWith("@") ? text : plain(text)]), point_policy: "snap_to_data" }));
  if (!pick) return;
  const tap = new B.TapTool({ renderers: [glyph] });
  figure.add_tools(tap);
  source.selected.properties.indices.change.connect(() => {
    const [point] = source.selected.indices;
    if (point !== undefined) pick(point);
  });
}

/** Text without the marks that a tooltip would take for fields. @param {string} text */
function plain(text) {
  return text.replace(/[@$]/g, (mark) => (mark === "@" ? "＠" : "＄"));
}

/** One bar for each name (or instant), side by side for each series. @param {any} B @param {any} figure @param {Spec} spec */
function bars(B, figure, spec) {
  const all = spec.series ?? [];
  return all.map((series, i) => {
    const data = /** @type {Record<string, any[]>} */ (lineColumns(spec, series));
    const share = 0.8 / all.length;
    const move = (i - (all.length - 1) / 2) * share;
    data.at = spec.names ? spec.names.map((name) => [name, move]) : data.x.map((x) => x + (spec.width ?? 0) * (0.5 + move));
    const source = new B.ColumnDataSource({ data });
    const width = spec.names ? share : (spec.width ?? 1) * share;
    const glyph = figure.vbar({ x: { field: "at" }, top: { field: "y" }, width, source, fill_color: colour(series.colour ?? seriesColour(i)), line_color: null, nonselection_fill_alpha: 1 });
    tools(B, figure, source, glyph, [["", series.name], ["", "@when"], ["", "@text"]], (point) => spec.pick?.(point, i));
    return source;
  });
}

/** @param {Spec} spec */
function columns(spec) {
  const size = spec.names?.length ?? spec.x?.length ?? 0;
  /** @type {Record<string, any[]>} */
  const data = { x: spec.names ?? (spec.x ?? []).map((x) => x + (spec.width ?? 0) / 2), when: [...Array(size).keys()].map((i) => whenOf(spec, i)) };
  const base = Array(size).fill(0);
  (spec.series ?? []).forEach((series, i) => {
    data[`from${i}`] = [...base];
    series.values.forEach((value, place) => (base[place] += value ?? 0));
    data[`to${i}`] = [...base];
    data[`text${i}`] = series.texts;
  });
  return data;
}

/** @param {any} B @param {any} figure @param {Spec} spec */
function stack(B, figure, spec) {
  const source = new B.ColumnDataSource({ data: columns(spec) });
  const all = spec.series ?? [];
  const tips = [["", "@when"], ...all.map((series, i) => [plain(series.name), `@text${i}`])];
  const width = spec.names ? 0.82 : (spec.width ?? 1) * 0.96;
  const glyphs = all.map((series, i) => figure.vbar(
    { x: { field: "x" }, bottom: { field: `from${i}` }, top: { field: `to${i}` }, width, source, fill_color: colour(series.colour ?? seriesColour(i)), line_color: null, nonselection_fill_alpha: 1 }));
  figure.add_tools(new B.HoverTool({ renderers: glyphs, tooltips: tips }));
  if (spec.names) figure.below[0].major_label_text_color = null; // too many to read: the tooltip has them
  if (spec.pick) {
    figure.add_tools(new B.TapTool({ renderers: glyphs }));
    source.selected.properties.indices.change.connect(() => {
      if (source.selected.indices[0] !== undefined) spec.pick?.(source.selected.indices[0], 0);
    });
  }
  return [source];
}

/** @param {any} B @param {number[]} values */
function mapper(B, values) {
  const steps = [...Array(24).keys()].map((i) => mix(colour("tint"), colour("s0"), i / 23));
  return new B.LinearColorMapper({ palette: steps, low: 0, high: Math.max(1, ...values) });
}

/** @param {string} a @param {string} b rgb(…) @param {number} share */
function mix(a, b, share) {
  const parts = (/** @type {string} */ text) => (text.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);
  const [from, to] = [parts(a), parts(b)];
  return "#" + from.map((one, i) => Math.round(one + (to[i] - one) * share).toString(16).padStart(2, "0")).join("");
}

/** @param {any} B @param {any} figure @param {Spec} spec */
function heat(B, figure, spec) {
  const cells = spec.cells ?? [];
  const data = {
    left: cells.map((one) => one.left), right: cells.map((one) => one.right), bottom: cells.map((one) => one.bottom), top: cells.map((one) => one.top),
    value: cells.map((one) => one.value), text: cells.map((one) => one.text),
  };
  const source = new B.ColumnDataSource({ data });
  const field = (/** @type {string} */ name) => ({ field: name });
  const glyph = figure.quad({ left: field("left"), right: field("right"), bottom: field("bottom"), top: field("top"), source,
    fill_color: { field: "value", transform: mapper(B, data.value) }, line_color: null, nonselection_fill_alpha: 1 });
  tools(B, figure, source, glyph, [["", "@text"]], (point) => spec.pick?.(point, 0));
  return [source];
}

/** @param {any} B @param {any} figure @param {Spec} spec */
function matrix(B, figure, spec) {
  const pairs = spec.pairs ?? [];
  const data = { x: pairs.map((one) => one.x), y: pairs.map((one) => one.y), value: pairs.map((one) => one.value), text: pairs.map((one) => one.text) };
  const source = new B.ColumnDataSource({ data });
  const at = { x: { field: "x" }, y: { field: "y" }, source };
  const glyph = figure.rect({ ...at, width: 0.96, height: 0.94, fill_color: { field: "value", transform: mapper(B, data.value) }, line_color: null, nonselection_fill_alpha: 1 });
  figure.text({ ...at, text: { field: "text" }, text_align: "center", text_baseline: "middle", text_color: colour("ink"), text_font_size: "12px" });
  tools(B, figure, source, glyph, [["", "@y → @x"], ["", "@text"]], (point) => spec.pick?.(point, 0));
  return [source];
}

/** What is missing, and what may still change. @param {any} B @param {any} figure @param {Spec} spec */
function annotate(B, figure, spec) {
  if (spec.names || spec.kind === "matrix") return;
  for (const one of spec.missing ?? []) {
    figure.add_layout(new B.BoxAnnotation({ left: one.start, right: one.end, level: "underlay", fill_color: colour("failed"), fill_alpha: 0.08,
      hatch_pattern: "right_diagonal_line", hatch_color: colour("failed"), hatch_alpha: 0.45, hatch_weight: 0.7, line_color: null, name: "missing" }));
  }
  if (spec.through !== null && spec.through !== undefined && spec.span && spec.through < spec.span[1]) {
    figure.add_layout(new B.BoxAnnotation({ left: Math.max(spec.through, spec.span[0]), right: spec.span[1], level: "underlay", fill_color: colour("conflict"), fill_alpha: 0.1,
      line_color: null, name: "open" }));
    figure.add_layout(new B.Span({ location: spec.through, dimension: "height", line_color: colour("conflict"), line_dash: [5, 4], line_width: 1.2 }));
  }
}

/** The names and colours of series, below a chart. @param {Array<{name: string, colour: string, ghost?: boolean}>} entries */
export function legend(entries) {
  return h("div", { class: "legend" }, entries.map((one) => {
    const made = h("span", { class: "key" }, one.name);
    made.style.setProperty("--dot", `var(--${one.colour})`);
    return made;
  }));
}

/** Buttons that zoom a chart, for the keyboard as well. @param {TmChart} of */
export function zoomButtons(of) {
  return h("div", { class: "seg", role: "group", "aria-label": "Zoom the chart" },
    h("button", { type: "button", "aria-label": "Zoom in", onclick: () => of.zoom(0.5) }, "+"),
    h("button", { type: "button", "aria-label": "Zoom out", onclick: () => of.zoom(2) }, "−"),
    h("button", { type: "button", onclick: () => of.zoom(0) }, "Reset"));
}
