// The view as a fragment of the address, such as '#samples&method=snapkv&budget=90%25': who opens it sees the same.
let section = "verdict";
let restoring = false; // the address stays as it was opened

const linkTo = (name, pairs) =>
  [`#${name}`, ...pairs.filter(([, value]) => value).map((pair) => pair.map(encodeURIComponent).join("="))].join("&");

const filtersNow = () => [
  ["view", modelFilter && modelFilter.value !== modelFilter.options[0].value ? modelFilter.value || "all" : ""],
  ["on", benchmarkFilter.value],
  ...[...hiddenMethods].map((method) => ["hide", method]),
];

const remember = (name = section) => {
  section = name;
  if (restoring) return;
  try {
    history.replaceState(null, "", linkTo(name, [...filtersNow(), ...(keyed[name]?.() ?? [])]));
  } catch { /* a page within a page has no address */ }
};

const restore = async () => {
  const [name, ...rest] = location.hash.slice(1).split("&");
  if (!rest.length || !$(name)) return;
  const pairs = new URLSearchParams(rest.join("&"));
  const wanted = Object.fromEntries(pairs);
  restoring = true;
  section = name;
  await filled;
  if (modelFilter && wanted.view) {
    modelFilter.value = wanted.view === "all" ? "" : wanted.view;
    showModels();
  }
  if (benchmarkFilter.value !== (wanted.on ?? "")) {
    benchmarkFilter.value = wanted.on ?? "";
    showBenchmarks();
  }
  all("#method-boxes input").forEach((box) => setMethod(box, !pairs.getAll("hide").includes(box.value)));
  tell("methods");
  if (name === "samples") await openSamples({ open: wanted.model ?? "0", ...wanted });
  if (name === "kept") await openKept(keptOption(wanted.model ?? "0", wanted.sample), wanted);
  else if (name !== "samples") $(name).scrollIntoView();
  restoring = false;
  document.documentElement.dataset.restored = location.hash;
};

for (const filter of [modelFilter, benchmarkFilter]) filter?.addEventListener("change", () => remember());
listen("methods", () => remember());
addEventListener("hashchange", restore);
restore();
