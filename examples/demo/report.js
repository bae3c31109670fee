// Draws the charts of the report with Bokeh, in the colours of the page, and again when its theme changes.
"use strict";
(() => {
  const B = window.Bokeh;
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const field = (name) => ({ field: name });

  function axis(one, said) {
    Object.assign(one, {
      axis_label: said?.label || null, axis_label_text_color: colour("soft"), axis_label_text_font_style: "normal", axis_label_text_font_size: "12px",
      axis_line_color: colour("rule"), major_tick_line_color: null, minor_tick_line_color: null, major_label_text_color: colour("soft"), major_label_text_font_size: "11.5px",
    });
    one.ticker = new B.FixedTicker({ ticks: (said?.ticks ?? []).map(([at]) => at) });
    one.major_label_overrides = new Map((said?.ticks ?? []).map(([at, name]) => [at, name]));
  }

  function bars(figure, all) {
    const data = Object.fromEntries(["left", "right", "bottom", "top", "tip"].map((name) => [name, all.map((bar) => bar[name])]));
    data.fill = all.map((bar) => (bar.colour ? colour(bar.colour) : "transparent"));
    data.alpha = all.map((bar) => (bar.colour === "shade" ? 0.1 : bar.colour ? 1 : 0));
    data.edge = all.map((bar) => (bar.gap ? colour("card") : "transparent"));
    const source = new B.ColumnDataSource({ data });
    const drawn = figure.quad({ left: field("left"), right: field("right"), bottom: field("bottom"), top: field("top"), source,
      fill_color: field("fill"), fill_alpha: field("alpha"), line_color: field("edge"), line_width: 1.5 });
    figure.add_tools(new B.HoverTool({ renderers: [drawn], tooltips: [["", "@tip"]], point_policy: "follow_mouse" }));
  }

  async function draw(host) {
    const spec = JSON.parse(host.dataset.plot);
    const figure = B.Plotting.figure({
      height: spec.height, sizing_mode: "stretch_width", tools: [], toolbar_location: null, background_fill_color: null, border_fill_color: null, outline_line_color: null,
      x_axis_type: spec.log ? "log" : "linear", x_range: new B.Range1d({ start: spec.x[0], end: spec.x[1] }), y_range: new B.Range1d({ start: spec.y[0], end: spec.y[1] }),
    });
    axis(figure.below[0], spec.below);
    axis(figure.left[0], spec.left);
    for (const grid of figure.center.filter((one) => one instanceof B.Grid)) grid.grid_line_color = colour("rule");
    for (const band of spec.bands) {
      figure.varea({ x: field("x"), y1: field("low"), y2: field("high"), source: new B.ColumnDataSource({ data: { x: band.x, low: band.low, high: band.high } }), fill_color: colour(band.colour), fill_alpha: 0.22 });
    }
    if (spec.bars.length) bars(figure, spec.bars.filter((bar) => bar.tip || bar.colour));
    for (const line of spec.lines) {
      figure.line({ x: field("x"), y: field("y"), source: new B.ColumnDataSource({ data: { x: line.x, y: line.y } }), line_color: colour(line.colour), line_width: 1.8, line_dash: line.dashed ? [5, 4] : [] });
    }
    if (spec.notes.length) {
      const data = Object.fromEntries(["x", "y", "text"].map((name) => [name, spec.notes.map((note) => note[name])]));
      figure.text({ x: field("x"), y: field("y"), text: field("text"), source: new B.ColumnDataSource({ data }), text_baseline: "middle", x_offset: 6, text_color: colour("ink"), text_font_size: "11.5px" });
    }
    host.replaceChildren();
    await B.Plotting.show(figure, host);
    host.dataset.drawn = "1";
  }

  function all() {
    for (const host of document.querySelectorAll(".plot")) void draw(host);
  }
  if (!B) return;
  B.logger.set_level("error");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
})();
