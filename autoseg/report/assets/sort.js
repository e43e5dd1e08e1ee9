// A click on a heading sorts the table by its column: first the highest on top, then the lowest, then as at first.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (!body) continue;
  const before = [...body.rows];
  // Sort by our scores if the column has any, else by the paper's; in other tables, by the text of the cells.
  const reader = (column) => {
    const key = ["value", "paper"].find((name) => before.some((row) => name in row.cells[column].dataset));
    return (row) => {
      const cell = row.cells[column];
      const given = key ? cell.dataset[key] ?? "" : cell.textContent.trim();
      return given === "" ? NaN : Number(given);
    };
  };
  for (const button of table.querySelectorAll("th button[data-column]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = Number(button.dataset.column);
      const order = { descending: "ascending", ascending: "none" }[head.getAttribute("aria-sort")] ?? "descending";
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      let rows = before;
      if (order !== "none") {
        head.setAttribute("aria-sort", order);
        const sign = order === "descending" ? -1 : 1;
        const number = reader(column);
        const numeric = before.some((row) => !Number.isNaN(number(row)));
        rows = [...before].sort((one, other) => {
          if (!numeric) return -sign * one.cells[column].textContent.localeCompare(other.cells[column].textContent);
          const a = number(one), b = number(other);
          // Cells without a number stay at the end.
          if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
          return sign * (a - b);
        });
      }
      table.classList.toggle("sorted", order !== "none");
      body.append(...rows);
    });
  }
}
