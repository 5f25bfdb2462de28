// Draws the plots in the page's colours, and works the controls. Nothing here asks for anything outside this file.
(() => {
  "use strict";
  const root = document.documentElement;
  const specifications = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wide = matchMedia("(min-width: 62rem)");
  const coarse = matchMedia("(pointer: coarse)");
  const say = (text) => { document.getElementById("said").textContent = text; };

  // --- colours: the style sheet's names, looked up through an element that nobody sees
  const probe = document.body.appendChild(Object.assign(document.createElement("span"), { hidden: true }));
  const looked = new Map();
  const colour = (name) => {
    if (!looked.has(name)) {
      probe.style.color = name;
      looked.set(name, getComputedStyle(probe).color);
    }
    return looked.get(name);
  };
  const coloured = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
    }
    return value;
  };

  // --- plots
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
  const dressed = (layout, data, narrow) => {
    const axes = Object.fromEntries(
      Object.entries(layout).filter(([key]) => /^[xy]axis\d*$/.test(key)).map(([key, axis]) => {
        if (axis.type !== "log") return [key, quiet(axis)];
        const span = decades(data, key[0]);
        const ticks = span > 1.6 ? { dtick: Math.ceil(span / 6) } : { tickformat: "~g", ...(span > 0.5 && { dtick: "D2" }) };
        return [key, quiet({ ...ticks, ...axis })];
      }));
    return coloured({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      ...(root.dataset.paper ? { width: 640 } : { autosize: true }),
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11.5 : 13, color: "var(--ink)" },
      margin: { l: narrow ? 44 : 56, r: 14, t: 12, b: 44 },
      dragmode: coarse.matches ? false : "zoom", hovermode: "closest",
      hoverlabel: { bgcolor: "var(--raised)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
      ...layout,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", ...layout.legend },
      ...axes,
    });
  };
  const settings = { displayModeBar: false, responsive: true };
  const slim = (trace) => (trace.colorbar
    ? { ...trace, colorbar: { ...trace.colorbar, thickness: 8, tickfont: { size: 10 }, title: { text: "" } } }
    : trace);
  const draw = (name) => {
    const place = document.getElementById(name);
    const { data, layout } = specifications[name];
    const narrow = place.clientWidth < 480;
    if (layout.meta?.aspect) place.style.height = `${Math.min(560, Math.round(place.clientWidth * layout.meta.aspect) + 30)}px`;
    const traces = data.map((trace) => coloured(narrow ? slim(trace) : trace));
    return Plotly.react(place, traces, dressed(layout, data, narrow), settings);
  };
  const redraw = () => {
    looked.clear();
    Object.keys(specifications).filter((name) => document.getElementById(name).data).forEach(draw);
  };

  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(redraw, 120);
  });

  // --- dark and light
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { button.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
  const recolour = () => { label(); redraw(); };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    recolour();
    say(`${isDark() ? "Dark" : "Light"} colours`);
  });
  dark.addEventListener("change", recolour);
  label();

  // --- axes
  document.querySelectorAll("button[data-axis]").forEach((control) => {
    control.addEventListener("click", () => {
      const axis = specifications[control.dataset.target].layout[control.dataset.axis];
      axis.type = axis.type === "log" ? "linear" : "log";
      control.setAttribute("aria-pressed", String(axis.type === "log"));
      draw(control.dataset.target);
    });
  });

  // --- code
  const copy = async (code) => {
    try {
      await navigator.clipboard.writeText(code);
    } catch {
      const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: code }));
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("refused");
    }
  };
  document.querySelectorAll("button.copy").forEach((control) => {
    const words = control.textContent;
    control.addEventListener("click", async () => {
      try {
        await copy(control.closest(".code").querySelector("code").textContent);
        control.textContent = "Copied";
        say("Code copied");
      } catch {
        control.textContent = "Select the code and copy it by hand";
      }
      control.focus();
      setTimeout(() => { control.textContent = words; }, 2500);
    });
  });

  // --- contents: open beside the page, closed above it; the section that is read is marked
  const contents = document.querySelector("nav.contents details");
  const fold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  contents.addEventListener("click", (event) => {
    if (event.target.closest("a") && !wide.matches) contents.open = false;
  });
  const watcher = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    });
  }, { rootMargin: "-15% 0px -75% 0px" });
  links.forEach((_, name) => watcher.observe(document.getElementById(name)));

  // --- paper: light colours, everything open
  let before = null;
  addEventListener("beforeprint", () => {
    const closed = [...document.querySelectorAll("details.card:not([open]), details.more:not([open])")];
    before = { theme: root.dataset.theme, closed };
    closed.forEach((one) => { one.open = true; });
    root.dataset.theme = "light";
    root.dataset.paper = "yes";
    redraw();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    before.closed.forEach((one) => { one.open = false; });
    before = null;
    delete root.dataset.paper;
    redraw();
  });

  // --- one plot after another, so that the page answers meanwhile
  const waiting = Object.keys(specifications);
  const next = async () => {
    const name = waiting.shift();
    if (name === undefined) { root.dataset.drawn = "all"; return; }
    await draw(name);
    setTimeout(next);
  };
  next();
})();
