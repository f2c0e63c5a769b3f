// Makes a table sortable: a click on a heading sorts the rows by its column, a second click reverses the direction.
// sorted(rows, column, falling) returns the rows in their new order.
const sortable = (table, sorted) => {
  const headings = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = heading.ariaSort === "ascending";
      headings.forEach(other => { other.ariaSort = null; });
      heading.ariaSort = falling ? "descending" : "ascending";
      body.append(...sorted([...body.rows], column, falling));
    });
  });
};
