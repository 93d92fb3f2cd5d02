// Small parts that every panel is made of.

/** An element; all text goes through here, and none of it is ever read as HTML. */
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

const nothing = (host, text) => {
  host.append(element("p", { class: "nothing" }, text));
  return {};
};

const chooser = (label, choices, chosen, choose) => {
  const options = [...choices].map(([value, text]) => element("option", { value, selected: value === chosen }, text));
  return element(
    "label",
    {},
    element("span", {}, label),
    element("select", { name: label, onchange: (event) => choose(event.target.value) }, ...options),
  );
};

const legend = (classes) =>
  element(
    "span",
    { class: "legend" },
    ...classes.map((each) => element("span", {}, element("i", { class: each }), each)),
  );

/** Names and what they stand for; those that stand for nothing are left out. */
const facts = (pairs) =>
  element(
    "dl",
    { class: "facts" },
    ...pairs
      .filter(([, value]) => value !== "")
      .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
