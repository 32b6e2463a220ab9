// Swaps in the part of the page that changed. Rendering is the server's; text never becomes markup here.
"use strict";

const seconds = Number(document.documentElement.dataset.refresh);

function keepPlace(shown, fresh) {
  const places = [...shown.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const focused = shown.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  shown.replaceWith(document.adoptNode(fresh));
  fresh.querySelectorAll(".scroll").forEach((box, number) => { box.scrollLeft = places[number] ?? 0; });
  if (focused) [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

async function refresh() {
  const lost = document.getElementById("lost");
  try {
    const response = await fetch(location.href, { cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const shown = document.querySelector("main");
    const fresh = page.querySelector("main");
    if (fresh.innerHTML !== shown.innerHTML) keepPlace(shown, fresh);
    document.title = page.title;
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
}

async function keepFresh() {
  if (!document.hidden) await refresh();
  setTimeout(keepFresh, 1000 * seconds);
}

setTimeout(keepFresh, 1000 * seconds);
