/**
 * The public HTTP API. The token is kept in memory only: it is asked for again when the page is loaded again.
 */
import { parseJson } from "./format.js";

let token = "";
/** @type {((problem: Problem) => Promise<string>) | null} */
let asking = null;
/** @type {Promise<string> | null} */
let asked = null;

/** @typedef {Record<string, string | number | boolean | null | undefined>} Params */

/** A refusal, as the problem document says it. */
export class Problem extends Error {
  /** @param {number} status @param {any} said */
  constructor(status, said) {
    super(said?.detail ?? said?.title ?? `the server answered ${status}`);
    this.status = status;
    this.code = String(said?.code ?? "");
    this.hint = String(said?.hint ?? "");
    this.where = String(said?.where ?? "");
    /** @type {number | null} */
    this.position = typeof said?.position === "number" ? said.position : null;
    this.retry = String(said?.retry ?? "");
  }
}

/** How to get a token when one is needed. @param {(problem: Problem) => Promise<string>} how */
export function onTokenNeeded(how) {
  asking = how;
}

export function hasToken() {
  return token !== "";
}

export function forgetToken() {
  token = "";
}

/** @param {string} path @param {Params} [params] */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return path + (text ? "?" + text : "");
}

/** A path with its parts escaped. @param {TemplateStringsArray} strings @param {...string} parts */
export function path(strings, ...parts) {
  return String.raw({ raw: strings }, ...parts.map(encodeURIComponent));
}

/**
 * @param {string} where
 * @param {{params?: Params, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [how]
 * @returns {Promise<Response>}
 */
export async function request(where, how = {}) {
  for (;;) {
    const used = token;
    const answer = await fetched(where, how);
    if (answer.ok) return answer;
    const problem = new Problem(answer.status, await said(answer));
    if (answer.status !== 401 || asking === null) throw problem;
    if (used === token) token = await (asked ??= asking(problem).finally(() => (asked = null)));
  }
}

/** @param {string} where @param {{params?: Params, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} how */
async function fetched(where, how) {
  /** @type {Record<string, string>} */
  const headers = { ...(how.headers ?? {}) };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  const posted = how.body !== undefined;
  if (posted) headers["Content-Type"] = "application/json";
  try {
    return await fetch(address(where, how.params), {
      method: posted ? "POST" : "GET", headers, signal: how.signal, body: posted ? JSON.stringify(how.body) : undefined, cache: "no-store",
    });
  } catch (error) {
    if (how.signal?.aborted) throw error;
    throw new Problem(0, { detail: "the server does not answer", hint: "see whether `tidemill serve` still runs", retry: "later" });
  }
}

/** @param {Response} answer */
async function said(answer) {
  try {
    return JSON.parse(await answer.text());
  } catch {
    return null;
  }
}

/** @param {string} where @param {Params} [params] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function get(where, params, signal) {
  return parseJson(await (await request(where, { params, signal })).text());
}

/** @param {string} where @param {unknown} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function post(where, body, signal) {
  return parseJson(await (await request(where, { body, signal })).text());
}

/**
 * Server-sent events, by fetch: EventSource cannot show a token. Comes again when the connection is lost.
 * @param {string} where
 * @param {AbortSignal} signal
 * @param {(kind: string, data: string) => void} heard
 * @param {(problem: Problem | null) => void} state of the connection: null when it is there
 */
export async function listen(where, signal, heard, state) {
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 8000)) {
    try {
      const answer = await request(where, { signal, headers: { Accept: "text/event-stream" } });
      state(null);
      pause = 250;
      await read(answer, heard);
    } catch (error) {
      if (signal.aborted) return;
      const problem = error instanceof Problem ? error : new Problem(0, { detail: "the connection was lost" });
      state(problem);
      if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) return;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

/** @param {Response} answer @param {(kind: string, data: string) => void} heard */
async function read(answer, heard) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const blocks = text.split("\n\n");
    text = /** @type {string} */ (blocks.pop());
    for (const block of blocks) {
      const lines = block.split("\n");
      const kind = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length === 0) continue;
      try {
        heard(kind, data.join("\n"));
      } catch (error) {
        console.error(error); // a fault of the page, not of the connection
      }
    }
  }
}

/** Save bytes as a file. @param {BlobPart} content @param {string} name @param {string} type */
export function save(content, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Download what an address has. @param {string} where @param {Params} params @param {string} name @param {string} [accept] */
export async function download(where, params, name, accept) {
  const answer = await request(where, { params, headers: accept ? { Accept: accept } : {} });
  const named = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition") ?? "");
  save(await answer.blob(), named ? named[1] : name, answer.headers.get("content-type") ?? "");
}
