// What all parts of the page share. Every foreign string goes into the page as text, never as markup.
const FULL = "full";
const FIRST = 35; // character code of 0 percent, see report/pack.py
const UNKNOWN = 101;

const $ = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const unique = (values) => [...new Set(values)];
const methodName = (method) => (method === FULL ? "full cache" : method);
const points = (share) => (100 * share).toFixed(1);
const signed = (share) => `${share < 0 ? "\u2212" : "+"}${Math.abs(100 * share).toFixed(1)}`;
const pText = (p) => (p < 0.001 ? "p < 0.001" : `p = ${Number(p.toPrecision(2))}`);
const shareOf = (text, index) => text.charCodeAt(index) - FIRST; // percent, or UNKNOWN

const make = (tag, text = "", name = "") => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
};

const fill = (select, entries, chosen = select.value) => {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
};

const inflate = (id) => {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
};
const unpacked = new Map();
// The JSON in the element `id`; unpacked once.
const unpack = (id) => {
  if (!unpacked.has(id)) unpacked.set(id, inflate(id).json());
  return unpacked.get(id);
};

const keyed = {}; // section -> function of what it shows, as pairs of key and value, see link.js

// Parts call `tell(what)` when a choice changes; whoever draws something `listens` for it.
const listeners = [];
const listen = (what, act) => listeners.push([what, act]);
const tell = (what) => listeners.filter(([name]) => name === what).forEach(([, act]) => act());
