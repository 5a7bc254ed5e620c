"use strict";
// The charts are complete without this: it adds the read-out under the pointer.
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const [x0, x1, left, right] = chart.x, [y0, y1, bottom, top] = chart.y;
  const cross = svg.querySelector(".cross"), probes = svg.querySelectorAll(".probe");
  const tip = svg.parentElement.querySelector(".tip");
  const px = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
  const py = (value) => Math.max(top, bottom + ((value - y0) / (y1 - y0)) * (top - bottom));
  const at = (xs, ys, x) => {
    if (x < xs[0] || x > xs[xs.length - 1]) return null;
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
    const share = high === low || xs[high] === xs[low] ? 0 : (x - xs[low]) / (xs[high] - xs[low]);
    return ys[low] + share * (ys[high] - ys[low]);
  };
  const shown = (value) => new Intl.NumberFormat("en", { notation: value >= 1e4 ? "compact" : "standard", maximumSignificantDigits: 3 })
    .format(value);
  const row = (name, value, colour) => {
    const line = document.createElement("div"), label = document.createElement("span"), number = document.createElement("span");
    label.textContent = name; number.textContent = value;
    if (colour !== null) label.style.color = `var(--c${colour})`;
    line.append(label, number);
    return line;
  };
  const hide = () => { for (const part of [cross, tip, ...probes]) part.style.visibility = "hidden"; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), zoom = box.width / svg.viewBox.baseVal.width;
    const here = (event.clientX - box.left) / zoom;
    if (here < left || here > right) return hide();
    const x = x0 + ((here - left) / (right - left)) * (x1 - x0);
    cross.setAttribute("x1", here); cross.setAttribute("x2", here); cross.style.visibility = "visible";
    const head = document.createElement("i");
    head.textContent = `${shown(x / chart.divisor)} ${chart.unit}`;
    const lines = [];
    chart.series.forEach((series, index) => {
      const loss = at(series.x, series.loss, x), probe = probes[index];
      probe.style.visibility = loss === null ? "hidden" : "visible";
      if (loss === null) return;
      probe.setAttribute("cx", px(x)); probe.setAttribute("cy", py(loss));
      lines.push([loss, row(series.name, loss.toFixed(3), series.colour)]);
    });
    lines.sort((a, b) => b[0] - a[0]);
    tip.replaceChildren(head, ...lines.map((line) => line[1]));
    const beyond = here * zoom + tip.offsetWidth + 24 > box.width;
    tip.style.left = `${here * zoom + (beyond ? -tip.offsetWidth - 14 : 14)}px`;
    tip.style.top = `${svg.parentElement.querySelector("figcaption").offsetHeight + 22}px`;
    tip.style.visibility = "visible";
  });
}
