/** Where in the console one is: `#/stream/requests?at=2024-01-01T03:00:00Z`. */

/** @typedef {{page: string, path: string[], query: URLSearchParams}} Route */

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...rest] = path.split("/").filter((part) => part !== "").map(decoded);
  return { page: page ?? "overview", path: rest, query: new URLSearchParams(query ?? "") };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {string[]} path
 * @param {Record<string, string | null | undefined>} [query] what is null or empty is left out
 */
export function hrefTo(path, query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) found.set(name, value);
  const text = found.toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

/** @param {string[]} path @param {Record<string, string | null | undefined>} [query] */
export function goTo(path, query) {
  location.hash = hrefTo(path, query);
}

/** Say in the address where one is, without a new page. @param {string[]} path @param {Record<string, string | null | undefined>} [query] */
export function note(path, query) {
  history.replaceState(null, "", hrefTo(path, query));
}
