/** The shell: navigation, theme, token, and the page that the address names. */
import { forgetToken, hasToken, onTokenNeeded } from "./lib/api.js";
import { h, show } from "./lib/dom.js";
import { forgetStreams, problemBox } from "./lib/parts.js";
import { parseRoute } from "./lib/routes.js";

/** @type {Array<{page: string, name: string, load: () => Promise<{default: CustomElementConstructor}>, under?: string}>} */
const PAGES = [
  { page: "overview", name: "Overview", load: () => import("./pages/overview.js") },
  { page: "stream", name: "Streams", load: () => import("./pages/stream.js") },
  { page: "explore", name: "Explore", load: () => import("./pages/explore.js") },
  { page: "search", name: "Search", load: () => import("./pages/search.js") },
  { page: "trace", name: "Trace", load: () => import("./pages/trace.js") },
  { page: "ledger", name: "Ledger", load: () => import("./pages/ledger.js") },
  { page: "vectors", name: "Vectors", load: () => import("./pages/vectors.js") },
  { page: "cell", name: "Cell", load: () => import("./pages/cell.js"), under: "explore" },
];
const THEME = "tidemill-theme";

const main = h("main", { class: "main", id: "main", tabindex: "-1" });
const nav = h("nav", { class: "nav", "aria-label": "Pages" },
  PAGES.filter((one) => !one.under).map((one) => h("a", { href: `#/${one.page}`, "data-page": one.page }, one.name)));
const theme = h("button", { type: "button", class: "quiet", onclick: turnTheme }, "");
const signOut = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => {
  forgetToken();
  forgetStreams();
  void turn();
} }, "Forget token");

/** @param {string | null} chosen */
function setTheme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  const dark = isDark();
  theme.textContent = dark ? "Light theme" : "Dark theme";
  document.dispatchEvent(new CustomEvent("tm-theme"));
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function turnTheme() {
  const chosen = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME, chosen);
  } catch {
    // a browser that keeps nothing forgets it, too
  }
  setTheme(chosen);
}

function keptTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

/** Ask for a token, until one is given. @param {import("./lib/api.js").Problem} problem @returns {Promise<string>} */
function askForToken(problem) {
  return new Promise((done) => {
    const input = h("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
    const dialog = h("dialog", { "aria-label": "Token", oncancel: (/** @type {Event} */ e) => e.preventDefault() },
      h("form", { method: "dialog", onsubmit: () => {
        const given = input.value.trim();
        dialog.remove();
        signOut.hidden = false;
        forgetStreams();
        done(given);
      } },
      h("h2", null, "This server asks for a token"),
      h("p", { class: "soft" }, "It is kept in the memory of this page, and nowhere else. What you see is what the token may read."),
      h("label", { class: "field" }, "Token", input),
      hadToken ? h("p", { class: "bad", role: "alert" }, problem.message) : null,
      h("div", { class: "row" }, h("button", { class: "primary" }, "Continue"), h("span", { class: "soft small" }, "Make one with ", h("code", null, "tidemill token create --scope read")))));
    hadToken = true;
    document.body.append(dialog);
    dialog.showModal();
  });
}
let hadToken = false;

let turned = 0;

/** Show the page that the address names. */
async function turn() {
  const mine = ++turned;
  const route = parseRoute(location.hash);
  const found = PAGES.find((one) => one.page === route.page) ?? PAGES[0];
  for (const link of nav.querySelectorAll("a")) {
    if (link.dataset.page === (found.under ?? found.page)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    const { default: Kind } = await found.load();
    if (mine !== turned) return;
    const page = /** @type {import("./lib/dom.js").Page} */ (new Kind());
    page.route = route;
    show(main, page);
    signOut.hidden = !hasToken();
    if (moved) /** @type {HTMLElement | null} */ (main.querySelector("h1"))?.focus({ preventScroll: true });
    moved = true;
    scrollTo(0, 0);
  } catch (error) {
    show(main, problemBox(error));
  }
}
let moved = false;

document.body.append(
  h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ e) => {
    e.preventDefault();
    main.focus();
  } }, "Skip to the page"),
  h("div", { class: "shell" },
    h("header", { class: "side" },
      h("a", { class: "brand", href: "#/overview" }, h("img", { src: new URL("icon.svg", import.meta.url).href, alt: "" }), "Tidemill"),
      nav,
      h("div", { class: "side-foot" }, h("span", { class: "wordy" }, "All times are UTC"), theme, signOut)),
    main));
onTokenNeeded(askForToken);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(keptTheme()));
setTheme(keptTheme());
addEventListener("hashchange", () => void turn());
void turn();
