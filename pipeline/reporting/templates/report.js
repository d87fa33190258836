"use strict";
/* What the page can do beside being read: choose, sort, search, point at a mark.
   Without it every section, table and chart is there. */

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (tag, text, attributes) => {
  const element = document.createElement(tag);
  element.textContent = text ?? "";
  Object.entries(attributes ?? {}).forEach(([name, value]) => element.setAttribute(name, value));
  return element;
};

/* Choose: what has data-kernel, data-gpu, data-words or data-provider is there if it is among the chosen. */

const choices = document.querySelector("#choices");
const chosen = { kernel: "", gpu: "", words: "", provider: "", text: "" };

function fits(element) {
  const { kernel, gpu, words, provider } = element.dataset;
  return (!chosen.kernel || !kernel || kernel === chosen.kernel)
    && (!chosen.gpu || !gpu || gpu.split(" ").includes(chosen.gpu))
    && (!chosen.words || !words || words === chosen.words)
    && (!chosen.provider || !provider || provider === chosen.provider);
}

function holds(row) {
  const text = row.textContent.toLowerCase();
  return chosen.text.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function choose() {
  if (chosen.provider || chosen.text) all("section:not([hidden]) details.every").forEach(writeRows);
  const rows = all("table.lines tbody tr");
  all("[data-kernel], [data-gpu], [data-words], [data-provider]").forEach((element) => {
    element.toggleAttribute("hidden", !fits(element));
  });
  rows.forEach((row) => row.toggleAttribute("hidden", !fits(row) || !holds(row)));
  const open = rows.filter((row) => !row.closest("section[hidden]"));
  const shown = open.filter((row) => !row.hidden);
  choices.querySelector("output").textContent =
    shown.length < open.length ? `${shown.length} of ${open.length} rows` : "";
  if (chosen.provider) all("details.every").forEach((details) => { details.open = true; });
}

/* The rows of every provider are data until somebody looks at them: written out they are half of the page. */
function writeRows(details) {
  const script = details.querySelector("script");
  if (!script) return;
  const { texts, rows } = JSON.parse(script.textContent);
  const place = [...details.querySelectorAll("thead th")].findIndex((one) => one.textContent.endsWith("configuration"));
  const body = details.querySelector("tbody");
  rows.forEach((places) => {
    const [gpu, words, provider, style, sort, first, ...cells] = places.map((one) => texts[one]);
    const row = body.insertRow();
    Object.assign(row.dataset, { gpu, words, provider });
    row.append(make("th", first, { scope: "row", "data-sort": sort }), ...cells.map((cell) => make("td", cell)));
    row.cells[place]?.prepend(make("i", "", { class: style }));
  });
  script.remove();
}

function chooseKernelOf(hash) {
  const section = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
  const kernel = section && section.dataset.kernel;
  if (!kernel || kernel === chosen.kernel) return;
  choices.querySelector("[name=kernel]").value = chosen.kernel = kernel;
  choose();
  section.scrollIntoView();
}

function startChoices() {
  const form = choices.querySelector("form");
  const read = () => {
    Object.keys(chosen).forEach((name) => { chosen[name] = form.elements[name]?.value.trim() ?? ""; });
    choose();
  };
  ["input", "change"].forEach((kind) => form.addEventListener(kind, read));
  form.elements.kernel.addEventListener("change", () => {
    read();
    if (chosen.kernel) document.getElementById(chosen.kernel).scrollIntoView();
  });
  form.addEventListener("reset", () => setTimeout(read));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => chooseKernelOf(location.hash));
  document.querySelector("nav").addEventListener("click", (event) => chooseKernelOf(event.target.hash ?? ""));
  all("details.every").forEach((details) => details.addEventListener("toggle", () => {
    writeRows(details);
    choose();
  }));
  choices.hidden = false;
  choices.open = matchMedia("(min-width: 48rem)").matches;
  // One kernel at a time: the page of all of them is long.
  form.elements.kernel.selectedIndex = Math.min(1, form.elements.kernel.options.length - 1);
  read();
  chooseKernelOf(location.hash);
}

/* Sort: a button in each column's heading. */

const value = (cell) => cell.dataset.sort ?? cell.textContent.trim();
const numeric = (text) => parseFloat(/^(?:<=? )?([-\d.].*)/.exec(text)?.[1]);

function compare(one, other) {
  const [a, b] = [numeric(one), numeric(other)];
  if (!one || !other) return (one ? 0 : 1) - (other ? 0 : 1);
  if (isNaN(a) || isNaN(b)) return one.localeCompare(other);
  return a - b;
}

function sortBy(heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  const column = heading.cellIndex;
  const body = heading.closest("table").tBodies[0];
  all("th[aria-sort]", heading.parentElement).forEach((one) => one.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const sorted = [...body.rows].map((row) => [value(row.cells[column]), row]);
  sorted.sort(([a], [b]) => (down && a && b ? compare(b, a) : compare(a, b)));
  body.append(...sorted.map(([, row]) => row));
}

function startSorting() {
  all("table.lines thead th").forEach((heading) => {
    const button = make("button", "", { type: "button" });
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(heading));
    heading.append(button);
  });
}

/* Point: the text of the nearest mark beside the pointer; with the arrow keys from mark to mark. */

const tip = document.querySelector("#tip");

function show(text, box) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(box.right + 10, innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 8)}px`;
}

function hide() {
  tip.hidden = true;
  all("use.at").forEach((mark) => mark.classList.remove("at"));
}

function point(mark) {
  hide();
  mark.classList.add("at");
  show(mark.dataset.text, mark.getBoundingClientRect());
}

function nearest(marks, x, y) {
  const away = (mark) => {
    const box = mark.getBoundingClientRect();
    return Math.hypot(x - box.left - box.width / 2, y - box.top - box.height / 2);
  };
  const found = marks.map((mark) => [away(mark), mark]).sort(([a], [b]) => a - b)[0];
  return found && found[0] < 40 ? found[1] : null;
}

function startPointing(chart) {
  const marks = () => all(".line:not([hidden]) use", chart);
  marks().forEach((mark) => {
    mark.dataset.text = mark.querySelector("title").textContent;
    mark.querySelector("title").remove();
  });
  chart.setAttribute("tabindex", "0");
  chart.addEventListener("pointermove", (event) => {
    const mark = nearest(marks(), event.clientX, event.clientY);
    if (mark) point(mark); else hide();
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const there = marks();
    const at = there.findIndex((mark) => mark.classList.contains("at"));
    if (there.length) point(there[(at + step + there.length) % there.length]);
  });
}

startSorting();
all(".chart > svg").forEach(startPointing);
if (choices) startChoices();
