"use strict";
// Filters and sorting. A table is one protocol; rows never leave their table.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const filters = all("[data-filter]");
const keysOf = new Map(all("tr[data-keys]").map((row) => [row, JSON.parse(row.dataset.keys)]));
const names = ["model", "method", "budget", "benchmark", "score", "n", "held", "share", "scoring", "decoding", "who"];

const fits = (keys) =>
  filters.every(({ value, dataset: { filter } }) => {
    if (value === "") return true;
    if (filter === "benchmark" && value === "mean") return keys.overall;
    return filter === "who" ? keys.who.split("\n").includes(value) : keys[filter] === value;
  });

const filterRows = () => {
  for (const section of all("[data-section]")) {
    const rows = all("tr[data-keys]", section);
    for (const row of rows) row.hidden = !fits(keysOf.get(row));
    const empty = rows.every((row) => row.hidden);
    section.querySelector("[data-empty]").hidden = !empty;
    section.querySelector(".scroll").hidden = empty;
  }
};

// What is not recorded comes last, whichever way.
const compare = (a, b, sign) => {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
};

const sortBy = (button) => {
  const head = button.closest("th");
  const name = names[Number(button.dataset.sort)];
  const down = head.ariaSort === "descending" ? false : head.ariaSort === "ascending" || name === "score";
  for (const other of all("th[aria-sort]", head.parentElement)) other.ariaSort = "none";
  head.ariaSort = down ? "descending" : "ascending";
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].sort((a, b) => compare(keysOf.get(a)[name], keysOf.get(b)[name], down ? -1 : 1));
  body.replaceChildren(...rows);
};

for (const filter of filters) filter.addEventListener("change", filterRows);
for (const button of all("[data-sort]")) button.addEventListener("click", () => sortBy(button));
filterRows();
document.documentElement.dataset.board = "ready";
