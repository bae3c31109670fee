/**
 * Elements made from values. Whatever comes from outside becomes a text node or a property, never markup.
 */

/** @typedef {Node | string | number | boolean | null | undefined | {toString(): string}} Child */

/**
 * An element. `class`, `on<event>` (a function), `data-*`, `aria-*`, other attributes; true: without a value.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any> | null} [given]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") /** @type {any} */ (made)[name] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  fill(made, ...children);
  return made;
}

/**
 * Append children to an element.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function fill(parent, ...children) {
  for (const node of nodes(children)) parent.append(node);
}

/**
 * Replace what an element holds. A child that it holds already stays attached, and so keeps the focus.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function show(parent, ...children) {
  const wanted = nodes(children);
  const kept = new Set(wanted);
  for (const old of [...parent.childNodes]) if (!kept.has(old)) old.remove();
  let next = parent.firstChild;
  for (const node of wanted) {
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
}

/** @param {Array<Child | Child[]>} children @returns {Node[]} */
function nodes(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== true)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Text in which what stands between backticks is code. @param {string} text @returns {Child[]} */
export function words(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", null, part) : part));
}

/** The colour that a token of the stylesheet has now. @param {string} name @returns {string} */
export function colour(name) {
  probe ??= document.body.appendChild(h("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
/** @type {HTMLSpanElement | undefined} */
let probe;

/**
 * Call `work` once things have been quiet for a while.
 * @template {any[]} A
 * @param {(...args: A) => void} work
 * @param {number} pause milliseconds
 * @returns {(...args: A) => void}
 */
export function settled(work, pause) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => work(...args), pause);
  };
}

/** A custom element that is a page: it knows its route, and stops asking when it goes. */
export class Page extends HTMLElement {
  constructor() {
    super();
    /** @type {import("./routes.js").Route} */
    this.route = { page: "", path: [], query: new URLSearchParams() };
    this.going = new AbortController();
  }

  get signal() {
    return this.going.signal;
  }

  connectedCallback() {
    this.className = "page";
    this.render();
  }

  disconnectedCallback() {
    this.going.abort();
  }

  render() {}
}
