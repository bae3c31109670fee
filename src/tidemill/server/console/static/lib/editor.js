/** A field for the text of a query: completion from the catalog, and errors at their character. */
import { h, show } from "./dom.js";
import { stem, utf16 } from "./words.js";

/** @typedef {import("./words.js").Choice} Choice */

let made = 0;

export class TmEditor extends HTMLElement {
  constructor() {
    super();
    const id = `choices-${++made}`;
    /** @type {(before: string, after: string) => Choice[]} */
    this.complete = () => [];
    /** @type {Choice[]} */
    this.choices = [];
    this.chosen = -1;
    this.wanting = false; // suggestions, though there were none
    this.marks = h("pre", { class: "marks", "aria-hidden": "true" });
    this.list = h("ul", { class: "choices", role: "listbox", id, hidden: true, "aria-label": "Suggestions" });
    this.error = h("p", { class: "bad small", role: "alert", id: `${id}-error` });
    this.area = h("textarea", {
      rows: "3", spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-autocomplete": "list", "aria-controls": id, "aria-describedby": `${id}-error`,
      oninput: () => {
        this.unmark();
        this.suggest();
      },
      onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e), onblur: () => this.close(), onscroll: () => (this.marks.scrollTop = this.area.scrollTop), onclick: () => this.close(),
    });
  }

  connectedCallback() {
    if (this.childElementCount > 0) return;
    this.area.setAttribute("aria-label", this.getAttribute("label") ?? "Query");
    this.append(h("div", { class: "editor" }, this.marks, this.area, this.list), this.error);
  }

  get value() {
    return this.area.value;
  }

  set value(text) {
    this.area.value = text;
    this.unmark();
    this.close();
  }

  unmark() {
    show(this.marks);
    this.error.textContent = "";
    this.area.removeAttribute("aria-invalid");
  }

  /** Show an error at its character. @param {import("./api.js").Problem} problem */
  mark(problem) {
    const text = this.area.value;
    this.area.setAttribute("aria-invalid", "true");
    this.error.textContent = problem.message.split("\n")[0] + (problem.hint ? ` — ${problem.hint}` : "");
    if (problem.position === null) return;
    const start = utf16(text, problem.position);
    const length = Math.max(/^[\w.]+/.exec(text.slice(start))?.[0].length ?? 1, 1);
    const end = Math.min(start + length, text.length);
    show(this.marks, text.slice(0, start), h("mark", { "data-position": start }, text.slice(start, end) || " "), text.slice(end));
  }

  suggest() {
    const at = this.area.selectionStart;
    const [before, after] = [this.area.value.slice(0, at), this.area.value.slice(at)];
    this.choices = /\w/.test(after[0] ?? "") ? [] : this.complete(before, after);
    if (this.choices.length === 0) {
      this.close();
      this.wanting = true;
      return;
    }
    this.chosen = 0;
    show(this.list, this.choices.map((one, i) => h("li", {
      role: "option", id: `${this.list.id}-${i}`, "aria-selected": String(i === 0), onpointerdown: (/** @type {Event} */ e) => {
        e.preventDefault();
        this.take(i);
      },
    }, one.text, h("span", null, one.kind))));
    this.list.hidden = false;
    const { left, top } = this.caret(before);
    this.list.style.left = `${Math.min(left, Math.max(0, this.clientWidth - 220))}px`;
    this.list.style.top = `${top}px`;
    this.area.setAttribute("aria-activedescendant", `${this.list.id}-0`);
  }

  /** When more is known: suggest where nothing could be suggested before. */
  suggestAgain() {
    if (this.wanting) this.suggest();
  }

  /** Where the caret is, in the field. @param {string} before */
  caret(before) {
    const mark = h("span", null, "​");
    const kept = [...this.marks.childNodes];
    show(this.marks, before, mark);
    const place = { left: mark.offsetLeft, top: mark.offsetTop + mark.offsetHeight - this.area.scrollTop + 4 };
    show(this.marks, kept);
    return place;
  }

  close() {
    this.wanting = false;
    this.list.hidden = true;
    this.choices = [];
    this.area.removeAttribute("aria-activedescendant");
  }

  /** @param {number} i */
  choose(i) {
    this.chosen = (i + this.choices.length) % this.choices.length;
    [...this.list.children].forEach((one, place) => one.setAttribute("aria-selected", String(place === this.chosen)));
    this.list.children[this.chosen].scrollIntoView({ block: "nearest" });
    this.area.setAttribute("aria-activedescendant", `${this.list.id}-${this.chosen}`);
  }

  /** @param {number} i */
  take(i) {
    const at = this.area.selectionStart;
    const text = this.area.value;
    const from = at - stem(text.slice(0, at)).length;
    const put = this.choices[i].text + " ";
    this.area.setRangeText(put, from, at, "end");
    this.close();
    this.area.focus();
    this.suggest();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const open = !this.list.hidden;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.ask(event);
    else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.suggest();
    } else if (open && event.key === "ArrowDown") this.step(event, 1);
    else if (open && event.key === "ArrowUp") this.step(event, -1);
    else if (open && (event.key === "Enter" || event.key === "Tab")) {
      event.preventDefault();
      this.take(this.chosen);
    } else if (open && event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.close();
    }
  }

  /** @param {KeyboardEvent} event @param {number} by */
  step(event, by) {
    event.preventDefault();
    this.choose(this.chosen + by);
  }

  /** @param {Event} event */
  ask(event) {
    event.preventDefault();
    this.close();
    this.dispatchEvent(new CustomEvent("ask"));
  }
}
customElements.define("tm-editor", TmEditor);
