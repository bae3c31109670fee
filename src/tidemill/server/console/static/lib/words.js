/** What could come next in a query: from the catalog, by what stands before the caret. Pure. */

/** @typedef {{text: string, kind: string}} Choice */

const CLAUSES = ["WHERE", "FILTER", "BETWEEN", "SINCE", "USING ROLLUP", "INTERVAL", "TIMEZONE", "GROUP BY", "EDGES", "FILL", "HAVING", "ORDER BY", "LIMIT", "OFFSET", "FORMAT", "AS OF"];
const SEARCH_CLAUSES = ["WHERE", "FILTER", "BETWEEN", "SINCE", "ORDER BY ts DESC", "ORDER BY arrival DESC", "LIMIT"];
/** @type {Record<string, string[]>} */
const FIXED = {
  "USING ROLLUP": ["5s", "1m", "1h", "1d", "7d"], INTERVAL: ["1m", "5m", "15m", "1h", "6h", "1d", "1w", "1mo"], SINCE: ["1h", "6h", "24h", "7d", "30d"],
  EDGES: ["include", "exclude", "null"], FILL: ["drop", "null", "zero", "carry"], FORMAT: ["rows", "series"], "AS OF": ["1h", "1d", "7d"],
};
const BREAK = /\b(SELECT|FROM|WHERE|FILTER|BETWEEN|SINCE|USING ROLLUP|INTERVAL|TIMEZONE|GROUP BY|EDGES|FILL|HAVING|ORDER BY|LIMIT|OFFSET|FORMAT|AS OF)\b/gi;

/** The metric that a query asks, as the catalog has it. @param {string} text @param {any[]} streams @returns {{stream: any, metric: any} | null} */
export function metricOf(text, streams) {
  const found = /\bFROM\s+([\w-]+|"[^"]+")(?:\.([\w-]+|"[^"]+"))?/i.exec(text);
  if (!found) return null;
  const bare = (/** @type {string} */ name) => name.replace(/^"|"$/g, "");
  const stream = streams.find((one) => one.stream === bare(found[1]));
  if (!stream) return null;
  const wanted = found[2] ? bare(found[2]) : stream.stream;
  const metric = stream.metrics.find((/** @type {any} */ one) => one.metric === wanted) ?? (found[2] ? null : stream.metrics.length === 1 ? stream.metrics[0] : null);
  return { stream, metric };
}

/** The metric of a query; of values that name theirs, what all metrics of the stream have. @param {string} text @param {any[]} streams @returns {any} */
export function metricIn(text, streams) {
  const found = metricOf(text, streams);
  if (!found || found.metric) return found?.metric ?? null;
  return { kind: "ratio", values: [], dimensions: [...new Set(found.stream.metrics.flatMap((/** @type {any} */ one) => one.dimensions))] };
}

/** The word that is being written. @param {string} before */
export function stem(before) {
  return /[\w.()%*-]*$/.exec(before)?.[0] ?? "";
}

/** The clause that the caret is in, and what of it is written. @param {string} before @returns {[string, string]} */
function clauseOf(before) {
  let [clause, rest] = ["", before];
  for (const found of before.matchAll(BREAK)) [clause, rest] = [found[0].toUpperCase().replace(/\s+/g, " "), before.slice(found.index + found[0].length)];
  return [clause, rest];
}

/** @param {string[]} texts @param {string} kind @returns {Choice[]} */
function choices(texts, kind) {
  return texts.map((text) => ({ text, kind }));
}

/**
 * @param {string} before the text up to the caret
 * @param {string} after the text behind it
 * @param {any[]} streams of the catalog
 * @param {any} described the stream with the values of its attributes, if it is known
 * @returns {Choice[]}
 */
export function completions(before, after, streams, described) {
  const word = stem(before);
  const start = before.slice(0, before.length - word.length);
  const found = metricOf(before + after, streams);
  const [clause, rest] = clauseOf(start);
  const all = byClause(clause, rest, streams, found, described);
  const wanted = word.toLowerCase();
  return unique(all).filter((one) => one.text.toLowerCase().startsWith(wanted) && one.text !== word).slice(0, 40);
}

/** @param {string} clause @param {string} rest @param {any[]} streams @param {{stream: any, metric: any} | null} found @param {any} described @returns {Choice[]} */
function byClause(clause, rest, streams, found, described) {
  const next = choices(CLAUSES, "clause");
  const metrics = found?.metric ? [found.metric] : found ? found.stream.metrics : streams.flatMap((one) => one.metrics);
  const dimensions = choices([...new Set(metrics.flatMap((/** @type {any} */ one) => dimensionsOf(one)))], "dimension");
  const values = choices([...new Set(metrics.flatMap((/** @type {any} */ one) => one.values))], "value");
  const within = /[,(]\s*$/.test(rest) || rest.trim() === "";
  if (clause === "") return rest.trim() === "" ? choices(["SELECT", "EXPLAIN SELECT"], "clause") : [];
  if (clause === "SELECT") return within || /[-+*/]\s*$/.test(rest) ? values : choices(["FROM", "AS"], "clause");
  if (clause === "FROM") return rest.trim() === "" ? streamNames(streams) : next;
  if (clause === "GROUP BY") return within ? [...dimensions, ...choices(["tenant"], "dimension")] : next;
  if (clause === "ORDER BY") return within ? [...values, ...dimensions, ...choices(["bucket"], "column")] : [...choices(["ASC", "DESC"], "order"), ...next];
  if (clause === "HAVING") return within || /\b(AND|OR|NOT)\s*$/i.test(rest) ? values : next;
  if (clause === "WHERE" || clause === "FILTER") return conditions(rest, dimensions, described, next);
  return rest.trim() === "" && FIXED[clause] ? choices(FIXED[clause], "value") : next;
}

/** @param {any} metric @returns {string[]} */
export function dimensionsOf(metric) {
  return [...metric.dimensions, ...(metric.kind === "state" ? ["state", "from_state", "to_state"] : [])];
}

/** @param {any[]} streams @returns {Choice[]} */
function streamNames(streams) {
  return [...choices(streams.map((one) => one.stream), "stream"), ...streams.flatMap((one) => choices(one.metrics.map((/** @type {any} */ metric) => `${one.stream}.${metric.metric}`), "metric"))];
}

/** @param {string} rest @param {Choice[]} names @param {any} described @param {Choice[]} next @returns {Choice[]} */
function conditions(rest, names, described, next) {
  if (rest.trim() === "" || /(\b(AND|OR|NOT)|\()\s*$/i.test(rest)) return names;
  const compared = /([\w.]+)\s*(?:=|!=|<|>|<=|>=)\s*$|([\w.]+)\s+(?:NOT\s+)?IN\s*\([^)]*$/i.exec(rest);
  if (compared) return valuesOf(compared[1] ?? compared[2], described);
  if (/[\w.]\s+$/.test(rest) && !/["\d]\s+$/.test(rest)) return choices(["=", "!=", "<", ">", "IN (", "LIKE", "BETWEEN"], "test");
  return [...choices(["AND", "OR"], "condition"), ...next];
}

/** @param {string} name @param {any} described @returns {Choice[]} */
function valuesOf(name, described) {
  const paths = described?.attributes?.paths ?? [];
  const top = paths.find((/** @type {any} */ one) => one.path === name)?.top ?? [];
  return top.map((/** @type {any} */ one) => ({ text: typeof one.value === "string" ? `"${one.value.replace(/"/g, '""')}"` : String(one.value), kind: `${one.events} events` }));
}

/** @param {Choice[]} all */
function unique(all) {
  const seen = new Set();
  return all.filter((one) => !seen.has(one.text) && seen.add(one.text));
}

/** For a search. @param {string} before @param {any} described @returns {Choice[]} */
export function searchCompletions(before, described) {
  const word = stem(before);
  const start = before.slice(0, before.length - word.length);
  const [clause, rest] = clauseOf(start);
  const next = choices(SEARCH_CLAUSES, "clause");
  const paths = clause === "WHERE" ? (described?.attributes?.paths ?? []).map((/** @type {any} */ one) => one.path) : Object.keys(described?.fields ?? {});
  const all = clause === "WHERE" || clause === "FILTER" ? conditions(rest, choices(paths, "path"), described, next) : rest.trim() === "" && FIXED[clause] ? choices(FIXED[clause], "value") : next;
  const wanted = word.toLowerCase();
  return unique(all).filter((one) => one.text.toLowerCase().startsWith(wanted) && one.text !== word).slice(0, 40);
}

/** Where a position of the server, in characters, is in UTF-16. @param {string} text @param {number} position */
export function utf16(text, position) {
  return [...text].slice(0, position).join("").length;
}

/** @param {string} stream @param {any} metric */
export function firstQuery(stream, metric) {
  const value = metric.kind === "state" ? "states" : metric.values[0];
  const group = metric.kind === "state" ? " GROUP BY state" : metric.dimensions.length ? ` GROUP BY ${metric.dimensions[0]}` : "";
  return `SELECT ${value} FROM ${metric.metric === stream ? stream : `${stream}.${metric.metric}`} INTERVAL 1h${group}`;
}
