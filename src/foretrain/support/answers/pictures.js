// Draws the panels of an answer in the colours of its style sheet. Nothing here asks for anything outside.
window.foretrainPictures = window.foretrainPictures || (() => {
  "use strict";
  const coarse = matchMedia("(pointer: coarse)");

  // --- colours: the style sheet's names, looked up through an element that nobody sees
  const palette = (place) => {
    const probe = place.appendChild(Object.assign(document.createElement("span"), { hidden: true }));
    const known = new Map();
    const colour = (words) => {
      const [name, share] = words.split(" / "); // "var(--blue) / 0.2" lets a fifth of the blue through
      if (!known.has(name)) {
        probe.style.color = name;
        known.set(name, getComputedStyle(probe).color);
      }
      return share ? known.get(name).replace("rgb(", "rgba(").replace(")", `, ${share})`) : known.get(name);
    };
    const coloured = (value) => {
      if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
      if (Array.isArray(value)) return value.map(coloured);
      if (value && typeof value === "object") {
        return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
      }
      return value;
    };
    return { coloured, done: () => probe.remove() };
  };

  // --- quiet axes, and ticks of logarithmic ones that can be read
  const quiet = (axis) => ({
    gridcolor: "var(--grid)", zerolinecolor: "var(--grid)", linecolor: "var(--line)", tickcolor: "var(--line)",
    showline: true, ticks: "outside", ticklen: 4, automargin: true, exponentformat: "power", ...axis,
    title: { standoff: 8, ...axis.title },
  });
  const decades = (data, letter) => {
    const sizes = data.flatMap((trace) => trace[letter] || []).filter((value) => value > 0);
    const [low, high] = sizes.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
    return Math.log10(high / low);
  };
  const dressed = (layout, data, narrow, font, width) => {
    const axes = Object.fromEntries(
      Object.entries(layout).filter(([key]) => /^[xy]axis\d*$/.test(key)).map(([key, axis]) => {
        if (axis.type !== "log" || axis.tickvals) return [key, quiet(axis)];
        const span = decades(data, key[0]);
        const ticks = span > 1.6 ? { dtick: Math.ceil(span / 6) } : { tickformat: "~g", ...(span > 0.5 && { dtick: "D2" }) };
        return [key, quiet({ ...ticks, ...axis })];
      }));
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      ...(width ? { width } : { autosize: true }),
      font: { family: font, size: narrow ? 11.5 : 13, color: "var(--ink)" },
      margin: { l: narrow ? 44 : 56, r: 14, t: 12, b: 44 },
      dragmode: coarse.matches ? false : "zoom", hovermode: "closest",
      hoverlabel: { bgcolor: "var(--raised)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
      ...layout,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", ...layout.legend },
      ...axes,
    };
  };
  const slim = (trace) => (trace.colorbar
    ? { ...trace, colorbar: { ...trace.colorbar, thickness: 8, tickfont: { size: 10 }, title: { text: "" } } }
    : trace);

  // --- axes that are turned from linear to logarithmic, or back
  const turned = ([key, axis], axes) => {
    if (!axes.has(key)) return [key, axis];
    const type = axis.type === "log" ? "linear" : "log";
    const moved = (end) => (type === "linear" ? 10 ** end : end > 0 ? Math.log10(end) : undefined);
    const range = axis.range?.map(moved);
    const limits = Object.entries(axis.autorangeoptions || {}).map(([name, end]) => [name, moved(end)]);
    const usable = range?.every(Number.isFinite) ? { range } : {};
    return [key, { ...axis, range: undefined, ...usable, type, autorangeoptions: Object.fromEntries(limits) }];
  };

  // --- one panel into one element; what is known of a panel stays with it
  const known = new WeakMap();
  const panel = (place) => {
    if (!known.has(place)) {
      known.set(place, { ...JSON.parse(place.nextElementSibling.textContent), axes: new Set() });
      offer(place, known.get(place));
    }
    return known.get(place);
  };
  const draw = (place, width) => {
    const { data, layout: given, axes } = panel(place);
    const layout = Object.fromEntries(Object.entries(given).map((entry) => turned(entry, axes)));
    const narrow = place.clientWidth < 480;
    if (given.meta) {
      const most = (known.get(place).height ??= place.clientHeight);
      place.style.height = `${Math.min(most, Math.round(place.clientWidth * given.meta.aspect) + 40)}px`;
    }
    const colours = palette(place.parentElement);
    const traces = colours.coloured(narrow ? data.map(slim) : data);
    const font = getComputedStyle(place).fontFamily;
    const clothes = colours.coloured(dressed(layout, data, narrow, font, width));
    colours.done();
    return Plotly.react(place, traces, clothes, { displayModeBar: false, responsive: true });
  };
  const offer = (place, { layout, toggles, axes }) => {
    const buttons = Object.entries(toggles || {}).map(([axis, words]) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: words });
      const mark = () => button.setAttribute("aria-pressed", String((layout[axis].type === "log") !== axes.has(axis)));
      button.dataset.axis = axis;
      button.addEventListener("click", () => {
        if (!axes.delete(axis)) axes.add(axis);
        mark();
        draw(place);
      });
      mark();
      return button;
    });
    if (!buttons.length) return;
    const row = Object.assign(document.createElement("div"), { className: "controls" });
    row.append(...buttons);
    place.before(row);
  };

  // --- a notebook: plotly comes once, packed, with the first answer; until it is there the still picture is shown
  let unpacked;
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = Object.assign(document.createElement("script"), { text: await new Response(stream).text() });
    document.head.appendChild(script);
  };
  const enliven = async (root) => {
    const packed = document.querySelector("script[data-foretrain-plotly]");
    if (!window.Plotly && packed) await (unpacked ??= unpack(packed.textContent)); // once, whoever asks first
    if (!window.Plotly) return;
    root.dataset.alive = "yes";
    await show(root);
    root.addEventListener("toggle", (event) => show(event.target), true);
    root.dataset.drawn = "all";
  };
  // What is folded is drawn when it is opened, because only then it has its width.
  const show = async (part) => {
    for (const place of part.querySelectorAll("[data-panel]")) {
      if (!place.checkVisibility()) continue;
      await draw(place);
      await new Promise((done) => setTimeout(done)); // the page answers meanwhile
    }
  };
  const redraw = (root, width) => {
    for (const place of root.querySelectorAll("[data-panel]")) if (place.checkVisibility()) draw(place, width);
  };
  return { enliven, redraw };
})();
