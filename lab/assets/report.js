// Draws the charts of the page. Each is drawn when it first comes into view, and again when its width
// or the colour scheme changes. The tables beside them need no script.
(() => {
  "use strict";
  const data = new Map(JSON.parse(document.getElementById("data").textContent).map((c) => [c.id, c]));
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value == null) return "-";
    const size = Math.abs(value);
    const [unit, by] = size >= 1e9 ? ["G", 1e9] : size >= 1e6 ? ["M", 1e6] : size >= 1e4 ? ["k", 1e3] : ["", 1];
    return parseFloat((value / by).toPrecision(4)) + unit;
  };

  const marks = (chart) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--bad");
    ctx.setLineDash([6, 4]);
    ctx.lineWidth = 2 * devicePixelRatio;
    for (const mark of chart.marks) {
      const x = Math.round(plot.valToPos(mark, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const options = (chart, width) => {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const name = (x) => (chart.names ? (chart.names[x] ?? "") : short(x));
    const few = (plot, places) => {
      const room = 14 + 7 * Math.max(3, ...(chart.names ?? []).map((text) => text.length));
      const step = Math.max(1, Math.ceil((places.length * room) / Math.max(room, plot.width - 90)));
      return places.map((x, at) => (at % step ? "" : name(x)));
    };
    const x = { ...axis, label: chart.x_label, labelSize: 22, values: few, size: 36 };
    if (chart.names) x.splits = () => chart.x;
    const last = chart.x.length - 1;
    const pad = chart.names ? 0.3 : 0;
    return {
      width,
      height: 260,
      legend: { live: true },
      cursor: { drag: { x: false, y: false } },
      scales: {
        x: { time: false, range: () => [chart.x[0] - pad, Math.max(chart.x[last], chart.x[0] + 1e-9) + pad] },
        y: chart.is_log ? { distr: 3 } : { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 1) * 1.08 || 1] },
      },
      axes: [x, { ...axis, label: chart.y_label, labelSize: 22, size: 58, values: (_, places) => places.map((v) => (v == null ? "" : short(v))) }],
      series: [
        { label: chart.x_label, value: (_, v) => (v == null ? "-" : name(v)) },
        ...chart.lines.map((line, at) => ({
          label: line.name,
          stroke: colour(`--c${at % 8}`),
          width: 2,
          dash: at >= 8 ? [6, 4] : undefined,
          spanGaps: true,
          points: { show: chart.x.length <= 60, size: 6 },
          value: (_, v) => short(v),
        })),
      ],
      hooks: { draw: [marks(chart)] },
    };
  };

  const draw = (box) => {
    const chart = data.get(box.id);
    const width = Math.floor(box.clientWidth);
    if (!chart || width < 60) return;
    drawn.get(box)?.destroy();
    const plot = new uPlot(options(chart, width), [chart.x, ...chart.lines.map((line) => line.values)], box);
    drawn.set(box, plot);
    box.dataset.width = width;
    // A line of the legend hides or shows its series, by the keyboard as by the mouse.
    box.querySelectorAll(".u-legend .u-series").forEach((line, at) => {
      if (at === 0) return;
      const label = line.querySelector("th");
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.setAttribute("aria-pressed", "true");
      const toggled = () => label.setAttribute("aria-pressed", String(!line.classList.contains("u-off")));
      label.addEventListener("click", () => setTimeout(toggled));
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        label.click();
      });
    });
  };

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
      resized.observe(entry.target);
    }
  }, { rootMargin: "600px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (Number(target.dataset.width) !== Math.floor(target.clientWidth)) draw(target);
    }
  });
  document.querySelectorAll(".chart").forEach((box) => seen.observe(box));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const box of drawn.keys()) draw(box);
  });
})();
