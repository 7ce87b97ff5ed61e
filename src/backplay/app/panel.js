// Buttons inside a panel tell the page what was chosen: 'pick' a pixel or token, a 'layer', 'choose' a picture or
// sentence, 'stop' the work. Everything also works with keys alone. Runs once for each panel; `element` stays.

const inside = (event, selector) => {
  const found = event.target.closest(selector);
  return found && element.contains(found) ? found : null;
};

// the button that was used last gets the focus back when the panel is drawn again
let used = null;

const cross = (map, row, column) => {
  map.dataset.row = row;
  map.dataset.column = column;
  const mark = map.querySelector(".bp-cross");
  mark.hidden = false;
  mark.style.left = `${(100 * (column + 0.5)) / map.dataset.width}%`;
  mark.style.top = `${(100 * (row + 0.5)) / map.dataset.height}%`;
};

element.addEventListener("click", (event) => {
  const button = inside(event, "[data-key]");
  used = button ? button.dataset.key : null;
  const map = inside(event, ".bp-pick");
  if (map) {
    const box = map.querySelector("img").getBoundingClientRect();
    const place = (at, start, size, count) => Math.min(count - 1, Math.max(0, Math.floor(((at - start) / size) * count)));
    const row = place(event.clientY, box.top, box.height, +map.dataset.height);
    const column = place(event.clientX, box.left, box.width, +map.dataset.width);
    cross(map, row, column);
    trigger("pick", { at: [row, column] });
    return;
  }
  if (!button) return;
  const data = button.dataset;
  if (data.token !== undefined) trigger("pick", { at: [+data.token] });
  else if (data.layer !== undefined) trigger("layer", { name: data.layer });
  else if (data.choose !== undefined) trigger("choose", { key: data.choose });
  else if (data.stop !== undefined) trigger("stop", {});
  else if (data.copy !== undefined) {
    navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  }
});

const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

element.addEventListener("keydown", (event) => {
  const map = inside(event, ".bp-pick");
  if (!map) return;
  const height = +map.dataset.height, width = +map.dataset.width;
  let row = +map.dataset.row, column = +map.dataset.column;
  if (row < 0) [row, column] = [height >> 1, width >> 1];
  if (event.key in steps) {
    const far = event.shiftKey ? 10 : 1;
    const [down, right] = steps[event.key];
    row = Math.min(height - 1, Math.max(0, row + far * down));
    column = Math.min(width - 1, Math.max(0, column + far * right));
    cross(map, row, column);
  } else if (event.key === "Enter" || event.key === " ") {
    cross(map, row, column);
    used = map.dataset.key;
    trigger("pick", { at: [row, column] });
  } else return;
  event.preventDefault();
});

// the address of the page says what it shows: each panel speaks for the parameters of its scope
const tell = () => {
  for (const state of element.querySelectorAll(".bp-state")) {
    const url = new URL(window.location.href);
    const scope = state.dataset.scope;
    const own = (key) => (scope ? key.startsWith(scope) : !key.includes(".") && key !== "tab" && !key.startsWith("__"));
    for (const key of [...url.searchParams.keys()]) if (own(key)) url.searchParams.delete(key);
    for (const [key, value] of new URLSearchParams(state.dataset.query)) url.searchParams.set(key, value);
    window.history.replaceState(window.history.state, "", url);
  }
};

watch("value", () => {
  tell();
  if (!used || document.activeElement !== document.body) return;
  const again = [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === used);
  if (again) again.focus({ preventScroll: true });
});
tell();
