/** What can be drawn of an answer, and the same question in other words. Pure. */
import * as format from "./format.js";
import { dimensionsOf } from "./words.js";

/** @typedef {import("./charts.js").Spec} Spec */
/** @typedef {{group: Record<string, any>, name: string, points: Map<number, {row: any, place: number}>}} Group */

const MOST = 8; // series that can be told apart
const BANDS = 36; // of a heatmap
const UNITS = /** @type {Record<string, number>} */ ({ us: 0.001, ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 });
const NOT_VALUES = new Set(["bucket", "tenant", "state", "from_state", "to_state", "lower", "upper"]);

/** Milliseconds of a duration such as 1h30m; null when it is of the calendar. @param {string | null} text @returns {number | null} */
export function milliseconds(text) {
  if (!text) return null;
  const parts = [...text.matchAll(/(\d+)(us|ms|mo|[smhdwqy])/g)];
  if (parts.length === 0 || parts.some(([, , unit]) => UNITS[unit] === undefined)) return null;
  return parts.reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit], 0);
}

/** An answer with its columns told apart. */
export class Answer {
  /** @param {any} said @param {any} metric of the catalog, or null @param {string} q */
  constructor(said, metric, q) {
    this.said = said;
    this.q = q;
    const dimensions = new Set(metric ? dimensionsOf(metric) : []);
    /** @type {string[]} */
    this.columns = said.columns;
    this.bins = this.columns.includes("lower") && this.columns.includes("upper");
    this.groups = this.columns.filter((name) => dimensions.has(name) || (NOT_VALUES.has(name) && name !== "bucket" && name !== "lower" && name !== "upper"));
    this.values = this.columns.filter((name) => name !== "bucket" && !this.groups.includes(name) && !(this.bins && (name === "lower" || name === "upper")));
    this.timed = this.columns.includes("bucket");
    this.traceable = metric !== null; // to its events, cell by cell
    this.width = milliseconds(said.interval);
    /** @type {any[]} */
    this.rows = said.rows;
  }

  /** Bounds of the cell that a row is of; null for a total. @param {any} row @returns {{start: string, end: string} | null} */
  cell(row) {
    if (!this.timed) return null;
    const start = format.ms(row.bucket);
    const end = this.width !== null ? start + this.width : this.next(start);
    return { start: row.bucket, end: new Date(end).toISOString().replace(".000Z", "Z") };
  }

  /** The next bucket, of intervals that are not all of one length. @param {number} start */
  next(start) {
    const later = this.rows.map((row) => format.ms(row.bucket)).filter((at) => at > start);
    return later.length ? Math.min(...later) : start + this.step();
  }

  /** Where there is a value, and one instant in each gap, so that no line crosses it. */
  instants() {
    const found = [...new Set(this.rows.map((row) => format.ms(row.bucket)))].sort((a, b) => a - b);
    const width = this.width;
    return width === null ? found : found.flatMap((at, i) => (i + 1 < found.length && found[i + 1] - at > width * 1.01 ? [at, at + width] : [at]));
  }

  step() {
    const starts = [...new Set(this.rows.map((row) => format.ms(row.bucket)))].sort((a, b) => a - b);
    return starts.length > 1 ? starts[starts.length - 1] - starts[starts.length - 2] : 86_400_000;
  }

  /** @param {any} row @returns {Record<string, any>} */
  groupOf(row) {
    return Object.fromEntries(this.groups.map((name) => [name, row[name] ?? null]));
  }

  /** What names a row beside its bucket. @param {any} row @returns {Record<string, any>} */
  namesOf(row) {
    return this.bins ? { ...this.groupOf(row), lower: row.lower, upper: row.upper } : this.groupOf(row);
  }

  /** The kinds of charts that fit. @returns {Array<"line" | "bars" | "heat" | "flow">} */
  kinds() {
    if (this.bins) return this.timed ? ["heat"] : ["bars"];
    const flow = this.groups.includes("state") || this.groups.includes("from_state") || this.groups.includes("to_state");
    return [...(this.timed ? /** @type {const} */ (["line"]) : []), "bars", ...(flow ? /** @type {const} */ (["flow"]) : [])];
  }

  /** @param {string} value @returns {Group[]} the largest first */
  grouped(value) {
    /** @type {Map<string, Group & {sum: number}>} */
    const found = new Map();
    this.rows.forEach((row, place) => {
      const group = this.groupOf(row);
      const key = JSON.stringify(group);
      let one = found.get(key);
      if (!one) found.set(key, (one = { group, name: nameOf(group), points: new Map(), sum: 0 }));
      one.points.set(this.timed ? format.ms(row.bucket) : 0, { row, place });
      one.sum += Math.abs(Number(row[value] ?? 0)) || 0;
    });
    return [...found.values()].sort((a, b) => b.sum - a.sum);
  }

  /** @returns {[number, number]} */
  span() {
    const starts = this.rows.map((row) => format.ms(row.bucket));
    const step = this.width ?? this.step();
    const data = this.said.span;
    const first = data ? format.ms(data.start) : Math.min(...starts);
    const last = data ? format.ms(data.end) : Math.max(...starts) + step;
    return [Math.min(first, ...starts), Math.max(last, ...starts)];
  }

  /** @param {[number, number]} span */
  lacks(span) {
    const { missing = [], complete_through: through = null } = this.said.completeness ?? {};
    return {
      missing: missing.filter((/** @type {any} */ one) => one.span).map((/** @type {any} */ one) => ({ start: one.span.start ? format.ms(one.span.start) : span[0], end: one.span.end ? format.ms(one.span.end) : span[1], what: one.why })),
      through: through ? format.ms(through) : null,
    };
  }

  /** What to draw. @param {"line" | "bars" | "heat" | "flow"} kind @param {string} value @param {(row: any) => void} pick @returns {{spec: Spec, left: number} | null} */
  spec(kind, value, pick) {
    if (this.rows.length === 0) return null;
    if (kind === "heat") return { spec: this.heat(pick), left: 0 };
    if (kind === "flow" && (this.groups.includes("from_state") || this.groups.includes("to_state"))) return { spec: this.transitions(value, pick), left: 0 };
    const groups = this.grouped(value);
    const shown = kind === "bars" && !this.timed ? groups.slice(0, 40) : groups.slice(0, MOST);
    const left = groups.length - shown.length;
    return { spec: this.timed ? this.overTime(kind, value, shown, pick) : this.totals(value, shown, pick), left };
  }

  /** @param {"line" | "bars" | "flow"} kind @param {string} value @param {Group[]} groups @param {(row: any) => void} pick @returns {Spec} */
  overTime(kind, value, groups, pick) {
    const x = this.instants();
    const span = this.span();
    const rowAt = (/** @type {Group} */ group, /** @type {number} */ at) => group.points.get(at)?.row ?? null;
    return {
      kind: kind === "flow" ? "stack" : kind, label: `${value} over time`, x, width: this.width ?? this.step(), span, ...this.lacks(span),
      series: groups.map((group) => ({
        name: group.name || value,
        values: x.map((at) => number(rowAt(group, at)?.[value])),
        texts: x.map((at) => `${value}: ${format.value(rowAt(group, at)?.[value])}`),
      })),
      pick: (point, place) => {
        const row = rowAt(groups[place], x[point]);
        if (row) pick(row);
      },
    };
  }

  /** @param {string} value @param {Group[]} groups @param {(row: any) => void} pick @returns {Spec} */
  totals(value, groups, pick) {
    const rows = groups.map((group) => group.points.get(0)?.row);
    const names = this.bins ? this.rows.map((row) => `${format.value(row.lower)} – ${format.value(row.upper)}`) : distinct(groups.map((group) => group.name || "total"));
    const shown = this.bins ? this.rows : rows;
    return {
      kind: "bars", label: `${value} by ${this.groups.join(", ") || "total"}`, names,
      series: [{ name: value, values: shown.map((row) => number(row[value])), texts: shown.map((row) => format.value(row[value])) }],
      pick: (point) => pick(shown[point]),
    };
  }

  /** @param {(row: any) => void} pick @returns {Spec} */
  heat(pick) {
    const span = this.span();
    const rows = this.rows.filter((row) => row.count !== null && (row.lower !== null || row.upper !== null));
    const edges = rows.flatMap((row) => [row.lower, row.upper]).filter((one) => one !== null).map(Number);
    const [least, most] = [Math.min(...edges), Math.max(...edges)];
    const log = least > 0;
    const bands = bandsOf(rows, log);
    /** @type {Map<string, {left: number, right: number, bottom: number, top: number, value: number, text: string, rows: any[]}>} */
    const cells = new Map();
    for (const row of rows) {
      const left = format.ms(row.bucket);
      const [low, high] = bands(row);
      const key = JSON.stringify([left, low, high]);
      const cell = this.cell(row);
      const one = cells.get(key) ?? {
        left, right: cell ? format.ms(cell.end) : left, bottom: low === null ? (log ? least / 2 : least - (most - least) * 0.05) : Number(low), top: high === null ? most * 1.1 : Number(high), value: 0, text: "", rows: [],
      };
      one.value += Number(row.count);
      one.rows.push(row);
      one.text = `${format.instant(row.bucket)}: ${format.value(one.rows.length > 1 ? one.value : row.count)} in (${format.value(low)}, ${format.value(high)}]`;
      cells.set(key, one);
    }
    const drawn = [...cells.values()];
    return {
      kind: "heat", label: "Histogram bins over time", span, log, ...this.lacks(span), cells: drawn,
      pick: (point) => {
        if (drawn[point].rows.length === 1) pick(drawn[point].rows[0]); // several bins together are in the table
      },
    };
  }

  /** @param {string} value @param {(row: any) => void} pick @returns {Spec} */
  transitions(value, pick) {
    /** @type {Map<string, {x: string, y: string, value: number, row: any}>} */
    const found = new Map();
    for (const row of this.rows) {
      const [y, x] = [String(row.from_state ?? "any"), String(row.to_state ?? "any")];
      const key = JSON.stringify([x, y]);
      const one = found.get(key) ?? { x, y, value: 0, row };
      one.value += Number(row[value] ?? 0);
      found.set(key, one);
    }
    const pairs = [...found.values()];
    return { kind: "matrix", label: "Changes of state, from rows to columns", pairs: pairs.map((one) => ({ ...one, text: format.value(one.value) })), pick: this.timed ? undefined : (point) => pick(pairs[point].row) };
  }

  /** All rows as CSV. */
  csv() {
    const quote = (/** @type {any} */ value) => {
      const text = value === null || value === undefined ? "" : typeof value === "object" && !(value instanceof format.Exact) ? JSON.stringify(value) : String(value);
      const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? "'" + text : text; // no formula for a spreadsheet
      return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
    };
    return [this.columns.map(quote).join(","), ...this.rows.map((row) => this.columns.map((name) => quote(row[name])).join(","))].join("\r\n") + "\r\n";
  }
}

/** Which bounds each bin is drawn with: where there are more than can be told apart, neighbours share theirs. @param {any[]} rows @param {boolean} log @returns {(row: any) => [any, any]} */
function bandsOf(rows, log) {
  const own = (/** @type {any} */ row) => /** @type {[any, any]} */ ([row.lower, row.upper]);
  const scale = (/** @type {any} */ one) => (log ? Math.log(Number(one)) : Number(one));
  const whole = rows.filter((row) => row.lower !== null && row.upper !== null);
  const bins = [...new Map(whole.map((row) => [String(row.lower), row])).values()].sort((one, other) => Number(one.lower) - Number(other.lower));
  if (bins.length <= BANDS) return own;
  const first = scale(bins[0].lower);
  const height = (scale(bins[bins.length - 1].upper) - first) / BANDS;
  const place = (/** @type {any} */ row) => Math.min(BANDS - 1, Math.floor((scale(row.lower) - first) / height + 1e-9));
  /** @type {Map<number, [any, any]>} */
  const bounds = new Map();
  for (const row of bins) bounds.set(place(row), [bounds.get(place(row))?.[0] ?? row.lower, row.upper]);
  return (row) => (row.lower === null || row.upper === null ? own(row) : bounds.get(place(row)) ?? own(row));
}

/** @param {any} value @returns {number | null} */
function number(value) {
  return value === null || value === undefined ? null : Number(value);
}

/** @param {Record<string, any>} group */
export function nameOf(group) {
  return Object.values(group).map((one) => (one === null ? "(none)" : String(one))).join(" · ");
}

/** @param {string[]} names */
function distinct(names) {
  const seen = new Map();
  return names.map((name) => {
    const times = (seen.get(name) ?? 0) + 1;
    seen.set(name, times);
    return times > 1 ? `${name} (${times})` : name;
  });
}

/** @param {string} text for a shell */
function shell(text) {
  return `'${text.replace(/'/g, `'\\''`)}'`;
}

/** @param {string} q @param {Record<string, any>} whose @param {boolean} token */
export function asCurl(q, whose, token) {
  const more = Object.entries(whose).map(([name, value]) => ` --data-urlencode ${shell(`${name}=${value}`)}`).join("");
  const shown = token ? ` -H "Authorization: Bearer $TIDEMILL_TOKEN"` : "";
  return `curl -sG${shown} ${shell(location.origin + "/v1/query")} --data-urlencode ${shell(`q=${q}`)}${more}`;
}

/** @param {string} q @param {Record<string, any>} whose @param {boolean} token */
export function asPython(q, whose, token) {
  const more = Object.entries(whose).map(([name, value]) => `, ${name}=${value === true ? "True" : JSON.stringify(value)}`).join("");
  const shown = token ? ', token=os.environ["TIDEMILL_TOKEN"]' : "";
  return `${token ? "import os\n\n" : ""}from tidemill import Client\n\nwith Client(${JSON.stringify(location.origin)}${shown}) as client:\n    answer = client.query(${JSON.stringify(q)}${more})\n    print(answer["rows"])\n`;
}
