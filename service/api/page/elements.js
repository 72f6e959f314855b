// What all drawing is made of.

const LONGEST_SHOWN = 4_000; // of a draft or a thought in the timeline

// An element: its class, and children, which are elements or texts.
export function element(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

// A text of the user, a model or a passage, which may run from right to left.
export function words(tag, name, text) {
  const made = element(tag, name, text);
  made.dir = "auto";
  return made;
}

export const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));
export const tail = (text) => (text.length > LONGEST_SHOWN ? `… ${text.slice(-LONGEST_SHOWN)}` : text);
