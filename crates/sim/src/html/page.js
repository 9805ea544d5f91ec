"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { curves, names, axis } = data;
  const shown = names.map(() => true);
  const charts = [...document.querySelectorAll(".chart")];
  const box = { left: 40, right: 10, top: 8, bottom: 22 };
  const end = Math.max(1e-9, ...curves.map((curve) => curve.at[curve.at.length - 1] || 0));
  const colour = (index) => "c" + ((index % 9) + (Math.floor(index / 9) % 2) * 9);

  // The namespace comes from an element of the page, so that no address stands in it.
  const space = charts[0].querySelector("svg").namespaceURI;
  const draw = (parent, kind, attributes, text) => {
    const element = document.createElementNS(space, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };

  const MINUTE = 60, HOUR = 3600, DAY = 86400;
  const STEPS = [1, 5, 15, 30, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 30 * DAY, 60 * DAY, 120 * DAY, 365 * DAY];
  const round = (most, count) => {
    const raw = most / count, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  };
  const timeStep = (count) => STEPS.find((step) => end / step <= count) || round(end, count);
  const tick = (at, step) => {
    if (axis !== "time") return +at.toFixed(1) + " %";
    if (at === 0) return "0";
    if (step >= DAY) return at / DAY + " d";
    if (step >= HOUR) return at / HOUR + " h";
    return step >= MINUTE ? at / MINUTE + " min" : at + " s";
  };
  const moment = (at) => {
    if (axis !== "time") return at.toFixed(1) + " % arrived";
    const two = (value) => String(Math.floor(value)).padStart(2, "0");
    if (at >= DAY) return Math.floor(at / DAY) + " d " + two((at % DAY) / HOUR) + " h " + two((at % HOUR) / MINUTE) + " min";
    if (at >= HOUR) return Math.floor(at / HOUR) + " h " + two((at % HOUR) / MINUTE) + " min";
    return Math.floor(at / MINUTE) + " min " + two(at % MINUTE) + " s";
  };
  const number = (value, unit) => (Number.isInteger(value) ? value : value.toFixed(1)) + (unit && " " + unit);

  // The last sample at or before a moment; it holds until the next one.
  const indexAt = (at, list) => {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] <= at) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  function frame(chart) {
    const svg = chart.querySelector("svg");
    const width = chart.clientWidth, height = chart.clientHeight;
    const key = chart.dataset.key, percent = chart.dataset.unit === "%";
    const values = curves.filter((_, index) => shown[index]).flatMap((curve) => curve[key]);
    const step = percent ? 25 : Math.max(1, round(Math.max(4, ...values), 4));
    const most = percent ? 100 : step * Math.ceil(Math.max(1, ...values) / step);
    const x = (at) => box.left + (at / end) * (width - box.left - box.right);
    const y = (value) => height - box.bottom - (value / most) * (height - box.top - box.bottom);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    return { svg, width, height, key, step, most, x, y };
  }

  function paint(chart) {
    const { svg, width, height, key, step, most, x, y } = frame(chart);
    for (let value = 0; value <= most; value += step) {
      draw(svg, "line", { class: value ? "grid" : "base", x1: box.left, x2: width - box.right, y1: y(value), y2: y(value) });
      draw(svg, "text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, value);
    }
    const across = Math.max(2, Math.floor(width / 75));
    const stride = axis === "time" ? timeStep(across) : round(end, across);
    for (let at = 0; at <= end * 1.0001; at += stride) {
      draw(svg, "text", { x: x(at), y: height - 6, "text-anchor": at === 0 ? "start" : x(at) > width - 30 ? "end" : "middle" }, tick(at, stride));
    }
    curves.forEach((curve, index) => {
      if (!shown[index] || !curve.at.length) return;
      let path = "";
      curve.at.forEach((at, place) => {
        const [px, py] = [x(at).toFixed(1), y(curve[key][place]).toFixed(1)];
        path += place ? `H${px}V${py}` : `M${px} ${py}`;
      });
      draw(svg, "path", { class: colour(index), d: path });
    });
  }

  const clear = () => document.querySelectorAll(".tip, .cursor").forEach((element) => element.remove());

  // The same moment in every picture; the values beside the one that is pointed at.
  function point(at, pointed) {
    clear();
    for (const chart of charts) {
      const width = chart.clientWidth, height = chart.clientHeight;
      const px = box.left + (at / end) * (width - box.left - box.right);
      draw(chart.querySelector("svg"), "line", { class: "cursor", x1: px, x2: px, y1: box.top, y2: height - box.bottom });
      if (chart === pointed) tip(chart, at, px, width);
    }
  }

  function tip(chart, at, px, width) {
    const element = document.createElement("div");
    element.className = "tip";
    element.append(line(moment(at)));
    curves.forEach((curve, index) => {
      const place = indexAt(at, curve.at);
      const over = place < 0 || at > curve.at[curve.at.length - 1];
      if (!shown[index]) return;
      element.append(line(names[index], over ? "–" : number(curve[chart.dataset.key][place], chart.dataset.unit), index));
    });
    chart.append(element);
    const wanted = px > width / 2 ? px - 10 - element.offsetWidth : px + 10;
    element.style.left = Math.max(0, Math.min(wanted, width - element.offsetWidth)) + "px";
  }

  function line(label, value, index) {
    const row = document.createElement("div");
    if (index !== undefined) {
      const swatch = draw(row, "svg", { class: "swatch " + colour(index), width: 22, height: 8 });
      draw(swatch, "path", { d: "M1 4H21" });
    }
    row.append(label);
    if (value !== undefined) row.appendChild(document.createElement("b")).textContent = value;
    return row;
  }

  let at = 0;
  const clamp = (value) => Math.min(end, Math.max(0, value));
  for (const chart of charts) {
    const follow = (event) => {
      const inside = event.clientX - chart.getBoundingClientRect().left - box.left;
      at = clamp((inside / (chart.clientWidth - box.left - box.right)) * end);
      point(at, chart);
    };
    chart.addEventListener("pointermove", follow);
    chart.addEventListener("pointerdown", follow);
    chart.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && clear());
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") clear();
      if (!move) return;
      event.preventDefault();
      at = clamp(at + (move * end) / 100);
      point(at, chart);
    });
  }

  document.getElementById("legend").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const index = Number(button.dataset.curve);
    shown[index] = !shown[index];
    button.setAttribute("aria-pressed", shown[index]);
    document.querySelectorAll(`tr[data-row="${index}"]`).forEach((row) => row.classList.toggle("off", !shown[index]));
    clear();
    charts.forEach(paint);
  });

  new ResizeObserver(() => { clear(); charts.forEach(paint); }).observe(document.querySelector(".pictures"));
  charts.forEach(paint);
})();
