/** Numbers, instants and durations as people read them. Pure. */

/** A number that no double holds: shown digit by digit. */
export class Exact {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
  valueOf() {
    return Number(this.text);
  }
  toString() {
    return this.text;
  }
  toJSON() {
    const { rawJSON } = /** @type {any} */ (JSON); // is there where numbers keep their digits
    return rawJSON ? rawJSON(this.text) : Number(this.text);
  }
}

/** @param {string} text @returns {any} JSON in which every number keeps its digits */
export function parseJson(text) {
  /** @param {string} _key @param {unknown} value @param {{source?: string}} [context] */
  const reviver = (_key, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? new Exact(context.source) : value;
  return JSON.parse(text, /** @type {any} */ (reviver));
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const FEW = new Intl.NumberFormat("en-US", { maximumFractionDigits: 3 });

/** A value of an answer: a number keeps all its digits. @param {any} value @returns {string} */
export function value(value) {
  if (value === null || value === undefined) return "–";
  if (value instanceof Exact) return grouped(value.text);
  if (typeof value === "number") return Number.isInteger(value) ? WHOLE.format(value) : grouped(String(value));
  if (typeof value === "object") return JSON.stringify(value);
  return /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(value) ? value.replace("T", " ").replace("Z", "") : String(value);
}

/** @param {string} text of a number */
function grouped(text) {
  const [whole, rest] = text.split(".", 2);
  if (!/^-?\d+$/.test(whole)) return text;
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest === undefined ? "" : "." + rest);
}

/** @param {number | null | undefined} n */
export function count(n) {
  return n === null || n === undefined ? "–" : WHOLE.format(Number(n));
}

/** @param {number | null | undefined} n */
export function few(n) {
  return n === null || n === undefined ? "–" : FEW.format(Number(n));
}

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let size = Number(n);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return `${FEW.format(Math.round(size * 10) / 10)} ${unit}`;
    size /= 1024;
  }
  return `${FEW.format(Math.round(size * 10) / 10)} TiB`;
}

/** `2024-01-01T03:00:00Z` as `2024-01-01 03:00`. Always UTC. @param {string | null | undefined} text */
export function instant(text) {
  if (!text) return "–";
  return text.replace("T", " ").replace(/(\.\d{3})\d*Z$/, "$1").replace(/Z$/, "").replace(/:00$/, "");
}

/** @param {string | null | undefined} start @param {string | null | undefined} end */
export function span(start, end) {
  if (!start && !end) return "–";
  const [from, to] = [instant(start), instant(end)];
  const midnight = end && /T00:00:00Z$/.test(end) && start && Date.parse(end) - Date.parse(start.slice(0, 10)) === 86_400_000 && start.length > 11 && !/T00:00:00Z$/.test(start);
  const days = [start, end].every((one) => one && /T00:00:00Z$/.test(one));
  if (days) return Date.parse(end ?? "") - Date.parse(start ?? "") === 86_400_000 ? from.slice(0, 10) : `${from.slice(0, 10)} – ${to.slice(0, 10)}`;
  if (midnight) return `${from} – 24:00`;
  return from.slice(0, 10) === to.slice(0, 10) ? `${from} – ${to.slice(11)}` : `${from} – ${to}`;
}

/** The first words of a duration such as `1050d2h15m34s319ms588us`. @param {string | null | undefined} text */
export function duration(text) {
  if (!text) return "–";
  const parts = text.match(/\d+(?:us|ms|[dhms])/g);
  return parts ? parts.slice(0, 2).join(" ") : text;
}

/** Milliseconds of an instant. @param {string} text */
export function ms(text) {
  return Date.parse(text);
}

/** Microseconds as RFC 3339. @param {number} us */
export function ofMicros(us) {
  const whole = new Date(Math.floor(us / 1000)).toISOString();
  const rest = ((us % 1000) + 1000) % 1000;
  const text = rest ? whole.replace("Z", String(rest).padStart(3, "0") + "Z") : whole;
  return text.replace(/\.?0+Z$/, (found) => (found.startsWith(".") || text.includes(".") ? "Z" : found));
}

/** The first digits of an id that is a hash; a name stays as it is. @param {string} id */
export function short(id) {
  return /^[0-9a-f]{20,}$/.test(id) ? id.slice(0, 12) : id.length > 60 ? id.slice(0, 57) + "…" : id;
}
