"use strict";
// A click on the head of a column sorts by it; a second one turns the order around.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => {
      const { sort } = row.cells[column].dataset;
      return sort === undefined ? row.cells[column].innerText : sort === "-inf" ? -Infinity : Number(sort);
    };
    const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b)));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }));
}
// On paper nothing can be opened.
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details:not(.log)")) one.open = true;
});
