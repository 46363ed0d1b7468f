// A figure that is updated in place. st.plotly_chart builds a new chart for every new figure, which
// loses the zoom at each refresh; Plotly.react keeps it as long as the layout's uirevision stays.

const QUIET = "#808890";
const LIBRARY = new URL("component/app.ui.live_chart.library/plotly.min.js", document.baseURI);

function library() {
  window.kronosPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = LIBRARY.href;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The chart library could not be loaded."));
    document.head.appendChild(script);
  });
  return window.kronosPlotly;
}

function themed(layout, node) {
  const style = getComputedStyle(node);
  const text = style.getPropertyValue("--st-text-color") || style.color;
  const ground = style.getPropertyValue("--st-background-color") || "#fff";
  layout.font = { ...layout.font, color: text, family: style.fontFamily };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    layout[name].tickfont = { color: QUIET, ...layout[name].tickfont };
  }
  layout.hoverlabel = { ...layout.hoverlabel, bgcolor: ground, font: { color: text, size: 12 } };
  return layout;
}

// Tells of a horizontal line that was dragged. The value drawn next is the one that the page makes
// of it, so what Plotly keeps of the drag itself ends with each new figure.
function tellMoves(node, figure, setTriggerValue) {
  figure.layout.editrevision = Date.now();
  node.told = (changes) => {
    const line = Object.keys(changes).find((name) => /^shapes\[\d+\]\.y0$/.test(name));
    if (line) setTriggerValue("moved", changes[line]);
  };
}

function listen(node) {
  if (node.listens) return;
  node.listens = true;
  node.on("plotly_relayout", (changes) => node.told(changes));
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const node = parentElement.querySelector(".live-chart");
  node.setAttribute("role", "figure");
  node.setAttribute("aria-label", data.alt);
  const figure = JSON.parse(data.figure);
  node.style.minHeight = `${figure.layout.height}px`;
  tellMoves(node, figure, setTriggerValue);
  const config = { ...data.config, responsive: true };
  library()
    .then((Plotly) => Plotly.react(node, figure.data, themed(figure.layout, node), config))
    .then(() => listen(node))
    .catch((error) => { node.textContent = error.message; });
  return () => {
    if (!node.isConnected && window.Plotly) window.Plotly.purge(node);
  };
}
