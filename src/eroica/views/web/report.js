/* What the page does beyond being read: hints under the pointer and by keyboard, the navigation's place, pictures that
   can be moved. Text from the job is only ever set as textContent. Without this script the page is still complete. */

"use strict";

const eroica = { pictures: {} };

/* ---------------------------------------------------------------- hints */

eroica.tip = (() => {
  const box = document.getElementById("tip");
  const place = (x, y) => {
    const width = box.offsetWidth;
    const height = box.offsetHeight;
    const left = Math.min(Math.max(8, x + 14), window.innerWidth - width - 8);
    const above = y - height - 12;
    box.style.left = `${left}px`;
    box.style.top = `${above > 8 ? above : y + 18}px`;
  };
  return {
    show(text, x, y) {
      if (box.textContent !== text) box.textContent = text;
      box.hidden = false;
      place(x, y);
    },
    hide() {
      box.hidden = true;
    },
  };
})();

/* SVG's own <title> would show a second, slower hint: its text moves into an attribute. */
for (const title of document.querySelectorAll("svg title")) {
  const owner = title.parentElement;
  owner.setAttribute("data-tip", title.textContent);
  title.remove();
}

eroica.hints = (figure) => [...figure.querySelectorAll("svg [data-tip]")].filter((mark) => mark.getClientRects().length);

document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-tip]");
  if (mark) eroica.tip.show(mark.getAttribute("data-tip"), event.clientX, event.clientY);
  else if (!event.target.closest?.("[data-own-tip]")) eroica.tip.hide();
});
document.addEventListener("pointerdown", (event) => {
  const mark = event.target.closest?.("[data-tip]");
  if (mark) eroica.tip.show(mark.getAttribute("data-tip"), event.clientX, event.clientY);
});
document.addEventListener("scroll", () => eroica.tip.hide(), { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") eroica.tip.hide();
});

/* A picture with hints is one stop of the Tab key; arrows go from mark to mark, culprits first. */
eroica.walk = (svg) => {
  let at = -1;
  let marks = null;
  const leave = () => {
    marks?.[at]?.classList.remove("at");
    eroica.tip.hide();
  };
  const go = (next) => {
    leave();
    at = (next + marks.length) % marks.length;
    const mark = marks[at];
    mark.classList.add("at");
    const edge = mark.getBoundingClientRect();
    eroica.tip.show(mark.getAttribute("data-tip"), edge.left + edge.width / 2, edge.top);
  };
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    marks ??= [...svg.querySelectorAll("[data-tip]")].sort((a, b) => b.matches(".culprit") - a.matches(".culprit"));
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key in steps) go(at < 0 && steps[event.key] < 0 ? marks.length - 1 : at + steps[event.key]);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(marks.length - 1);
    else return;
    event.preventDefault();
  });
};

/* ---------------------------------------------------------------- the page */

function startPictures() {
  const start = (figure) => {
    const id = figure.id.replace("picture-", "");
    const data = document.getElementById(`data-${id}`);
    const draw = eroica.pictures[id];
    if (draw) draw(figure, data ? JSON.parse(data.textContent) : null);
    for (const svg of figure.querySelectorAll("svg.picture")) if (svg.querySelector("[data-tip]")) eroica.walk(svg);
    for (const box of figure.querySelectorAll(".body, .scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  };
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        watcher.unobserve(entry.target);
        start(entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  for (const figure of document.querySelectorAll("figure")) watcher.observe(figure);
}

function markPlace() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const strip = document.querySelector(".nav-inner");
  const sections = [...document.querySelectorAll("main > section")];
  let current = null;
  const update = () => {
    const line = 0.3 * window.innerHeight;
    const passed = sections.filter((section) => section.getBoundingClientRect().top <= line);
    const link = links.get((passed.at(-1) ?? sections[0]).id);
    if (link === current || !link) return;
    current?.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    const target = link.offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + link.offsetWidth / 2;
    strip.scrollLeft = Math.max(0, target);
    current = link;
  };
  document.addEventListener("scroll", update, { passive: true });
  update();
}

/* What is drawn for the screen stands in for the still picture, except on paper: that is as wide as it is, and white. */
eroica.replace = (body, ...moving) => {
  const still = [...body.childNodes];
  body.replaceChildren(...moving);
  window.addEventListener("beforeprint", () => body.replaceChildren(...still));
  window.addEventListener("afterprint", () => body.replaceChildren(...moving));
};

/* On paper nothing can be opened: findings are there in full. Tables that say the same as a picture stay closed. */
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("#findings details:not([open])")];
  for (const details of opened) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});

document.addEventListener("DOMContentLoaded", () => {
  startPictures();
  markPlace();
});
