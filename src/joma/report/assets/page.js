"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("drawings").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  // Okabe and Ito's colours; on dark, the blue and the black are lightened.
  const palettes = {
    light: ["#0072B2", "#D55E00", "#007A5A", "#A8508A", "#2A7FB0", "#8A5A00", "#000000"],
    dark: ["#56B4E9", "#F08A4B", "#3CC9A0", "#E39AC4", "#9AD0F5", "#F0C75E", "#FFFFFF"],
  };
  const scales = {
    light: [[8, 48, 107], [0, 122, 90], [178, 107, 0]],
    dark: [[120, 180, 255], [90, 214, 160], [255, 214, 102]],
  };
  const drawn = new Set();

  const theme = () =>
    root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  function mixed(scale, at) {
    const place = at * (scale.length - 1);
    const low = Math.min(scale.length - 2, Math.floor(place));
    const parts = scale[low].map((c, i) => Math.round(c + (scale[low + 1][i] - c) * (place - low)));
    return `rgb(${parts.join(",")})`;
  }

  function colour(meta, name) {
    if (meta.colour < 0) return name === "dark" ? "#a3adb8" : "#57606a";
    if (meta.ordered) return mixed(scales[name], meta.of > 1 ? meta.colour / (meta.of - 1) : 0);
    return palettes[name][meta.colour % palettes[name].length];
  }

  // Step 0 has no place on a logarithmic axis, so such axes show log(1 + step).
  const shown = (x) => (x === null ? null : Math.log10(1 + x));

  function ticks(low, high) {
    const found = low < 1 ? [0] : [];
    for (let power = 1; power <= Math.max(10, high); power *= 10) found.push(power);
    return found;
  }

  function stretch(data, layout) {
    const every = data.flatMap((trace) => trace.x).filter((x) => x !== null);
    const low = every.reduce((a, b) => Math.min(a, b), Infinity);
    const high = every.reduce((a, b) => Math.max(a, b), -Infinity);
    layout.xaxis = layout.xaxis || {};
    if (low > 0 && low < 1) {
      layout.xaxis.type = "log";
      if (layout.xaxis.range) layout.xaxis.range = layout.xaxis.range.map((x) => Math.log10(x));
      return;
    }
    for (const trace of data) {
      trace.customdata = trace.customdata || trace.x;
      trace.x = trace.x.map(shown);
      if (trace.type === "scatter" && trace.hoverinfo !== "skip")
        trace.hovertemplate = "%{customdata}: %{y}<extra>%{fullData.name}</extra>";
    }
    const at = ticks(low, high);
    layout.xaxis.tickvals = at.map(shown);
    layout.xaxis.ticktext = at.map((x) => x.toLocaleString("en"));
    if (layout.xaxis.range) layout.xaxis.range = layout.xaxis.range.map(shown);
  }

  function painted(trace, name) {
    const meta = trace.meta || {};
    if (trace.type === "heatmap") {
      trace.customdata = trace.z.map((row, r) => row.map((_, c) => [meta.rows[r], meta.columns[c]]));
      trace.hovertemplate = "%{customdata[0]}, %{customdata[1]}: %{z}<extra></extra>";
      return trace;
    }
    const paint = colour(meta, name);
    trace.line = { ...trace.line, color: paint };
    trace.marker = { ...trace.marker, color: paint };
    if (trace.error_x) trace.error_x.color = paint;
    if (meta.band) {
      trace.fillcolor = paint;
      trace.opacity = 0.22;
    }
    return trace;
  }

  function figure(number) {
    const name = theme();
    const copy = JSON.parse(JSON.stringify(figures[number]));
    const style = getComputedStyle(root);
    const [text, soft, line] = ["--text", "--soft", "--line"].map((v) =>
      style.getPropertyValue(v).trim(),
    );
    const layout = copy.layout;
    if (layout.meta && layout.meta.log) stretch(copy.data, layout);
    const data = copy.data.map((trace) => painted(trace, name));
    for (const key of Object.keys(layout)) {
      if (!/^[xy]axis/.test(key)) continue;
      layout[key] = { gridcolor: line, zerolinecolor: line, linecolor: line, ...layout[key] };
    }
    for (const shape of layout.shapes || []) {
      if (shape.meta !== "reference") continue;
      delete shape.meta;
      shape.fillcolor = colour({ colour: -1 }, name);
      shape.opacity = 0.25;
      shape.line = { color: shape.fillcolor, width: 1 };
    }
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, family: "system-ui, sans-serif", size: 12 },
      margin: { l: 56, r: 12, t: 24, b: 48 },
      // Below the title of the axis, which ends some 60 pixels under the plot.
      legend: { orientation: "h", y: -66 / (layout.height - 140), yanchor: "top", x: 0 },
      hoverlabel: { namelength: 40 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: text },
      autosize: true,
    });
    return [data, layout];
  }

  function draw(place) {
    const [data, layout] = figure(Number(place.dataset.figure));
    Plotly.react(place, data, layout, {
      responsive: true,
      displaylogo: false,
      showSendToCloud: false,
      plotlyServerURL: "",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
    });
    drawn.add(place);
  }

  const places = [...document.querySelectorAll(".plot")];
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || drawn.has(entry.target)) continue;
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  places.forEach((place) => seen.observe(place));

  function relabel() {
    button.textContent = theme() === "dark" ? "Light colours" : "Dark colours";
  }

  function restyle() {
    relabel();
    drawn.forEach(draw);
  }

  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    restyle();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  relabel();

  document.getElementById("download").addEventListener("click", () => {
    const text = document.getElementById("csv").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "joma-records.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme || null;
    root.dataset.theme = "light";
    document.querySelectorAll("details.run").forEach((one) => (one.open = true));
    relabel();
    places.filter((place) => place.offsetParent !== null).forEach(draw);
  });
  addEventListener("afterprint", () => {
    if (before === null) delete root.dataset.theme;
    else root.dataset.theme = before;
    restyle();
  });
})();
