// The page's own controls: colours, code to copy, contents, paper. Nothing here asks for anything outside this file.
(() => {
  "use strict";
  const root = document.documentElement;
  const pictures = window.foretrainPictures;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wide = matchMedia("(min-width: 62rem)");
  const say = (text) => { document.getElementById("said").textContent = text; };

  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => pictures.redraw(root), 120);
  });

  // --- dark and light
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { button.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
  const recolour = () => { label(); pictures.redraw(root); };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    recolour();
    say(`${isDark() ? "Dark" : "Light"} colours`);
  });
  dark.addEventListener("change", recolour);
  label();

  // --- code: a button beside each block that copies it
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
  document.querySelectorAll(".code").forEach((block) => {
    const words = "Copy code";
    const control = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: words });
    block.querySelector(".bar").append(control);
    control.addEventListener("click", async () => {
      try {
        await copy(block.querySelector("code").textContent);
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
  const open = () => {
    const part = document.getElementById(location.hash.slice(1));
    if (part?.matches("details.section")) part.open = true;
  };
  addEventListener("hashchange", open);
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
    const closed = [...document.querySelectorAll("details:is(.section, .card, .more):not([open])")];
    before = { theme: root.dataset.theme, closed };
    closed.forEach((one) => { one.open = true; });
    root.dataset.theme = "light";
    pictures.redraw(root, 640);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    before.closed.forEach((one) => { one.open = false; });
    before = null;
    pictures.redraw(root);
  });

  open();
  pictures.enliven(root);
})();
