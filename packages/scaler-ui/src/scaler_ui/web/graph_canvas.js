// Draws a graph: nodes, or groups of nodes, in columns from left to right; lines from what is needed to what needs it.
// Begun and ended nodes have the colours of their functions. The wheel zooms, dragging moves, a double click shows all.
const MARGIN = 16;

export default {
  template: `<canvas ref="canvas" @wheel.prevent="zoom" @pointerdown="press" @pointermove="move" @pointerup="release"
    @pointerleave="leave" @dblclick="reset"></canvas>`,
  props: { picture: Object, states: Object, colours: Object },
  data: () => ({ scale: 1, left: 0, top: 0, pressed: null, hovered: -1 }),
  mounted() {
    this.now = this.states;
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.$refs.canvas);
    this.theme = new MutationObserver(() => this.draw());
    this.theme.observe(document.body, { attributeFilter: ["class"] });
  },
  unmounted() {
    this.sizes.disconnect();
    this.theme.disconnect();
  },
  watch: {
    states() { this.show(this.states); },
    picture() { this.draw(); },
  },
  methods: {
    // Shows other states of the same items.
    show(states) {
      this.now = states;
      this.draw();
    },
    // The box of each item in the units of the style sheet.
    boxes() {
      const { xs, ys, columns, rows, counts } = this.picture, canvas = this.$refs.canvas;
      const width = (canvas.clientWidth - 2 * MARGIN) * this.scale, height = (canvas.clientHeight - 2 * MARGIN) * this.scale;
      const wide = Math.max(2, Math.min(counts.length ? 170 : 40, 0.6 * width / columns));
      const high = Math.max(1.5, Math.min(26, 0.75 * height / rows));
      return xs.map((x, item) => [MARGIN + this.left + x * width - wide / 2, MARGIN + this.top + ys[item] * height - high / 2, wide, high]);
    },
    draw() {
      const canvas = this.$refs.canvas, ratio = devicePixelRatio || 1, style = getComputedStyle(document.body);
      const [ink, quiet, edge, bad, busy] = ["--ink", "--quiet", "--edge", "--bad", "--busy"].map((name) => style.getPropertyValue(name));
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = canvas.clientHeight * ratio;
      const pen = canvas.getContext("2d"), boxes = this.boxes(), { functions, names, edges, counts, ys } = this.picture;
      const { letters, shares, path } = this.now, onPath = new Set(path);
      pen.scale(ratio, ratio);
      const line = (from, to) => {
        const [a, b, w, h] = boxes[from], [c, d, , k] = boxes[to], middle = (a + w + c) / 2;
        pen.moveTo(a + w, b + h / 2);
        pen.bezierCurveTo(middle, b + h / 2, middle, d + k / 2, c, d + k / 2);
      };
      pen.strokeStyle = quiet;
      pen.globalAlpha = Math.max(0.12, Math.min(0.6, 300 / (edges.length || 1)));
      pen.beginPath();
      for (let at = 0; at < edges.length; at += 2) line(edges[at], edges[at + 1]);
      pen.stroke();
      pen.globalAlpha = 1;
      pen.strokeStyle = ink;
      pen.lineWidth = 2.5;
      pen.beginPath();
      for (let at = 1; at < path.length; at += 1) line(path[at - 1], path[at]);
      pen.stroke();
      boxes.forEach(([x, y, width, height], item) => {
        const letter = letters[item], colour = this.colours[names[functions[item]]];
        const share = counts.length ? shares[item] / 100 : "sf".includes(letter) ? 1 : 0, isBad = "fx".includes(letter);
        pen.fillStyle = style.getPropertyValue("--panel");
        pen.fillRect(x, y, width, height);
        pen.fillStyle = letter === "c" || letter === "u" ? "#999" : colour;
        pen.globalAlpha = letter === "r" ? 0.45 : letter === "q" ? 0.25 : letter === "c" || letter === "u" ? 1 : 0.1;
        pen.fillRect(x, y, width, height);
        pen.globalAlpha = 1;
        pen.fillRect(x, y, width * share, height);
        pen.lineWidth = isBad || letter === "r" || onPath.has(item) ? 2 : 1;
        pen.strokeStyle = isBad ? bad : onPath.has(item) ? ink : letter === "r" ? busy : height < 4 ? "#0000" : edge;
        pen.strokeRect(x, y, width, height);
        if (!counts.length || height < 13 || width < 60) return;
        const name = names[functions[item]], text = `${counts[item].toLocaleString()} × ${name.split(":").pop()}`;
        pen.font = "11px sans-serif";
        pen.save();
        pen.beginPath();
        pen.rect(x, y, width, height);
        pen.clip();
        pen.strokeStyle = style.getPropertyValue("--panel");
        pen.lineWidth = 3;
        pen.strokeText(text, x + 5, y + height / 2 + 4);
        pen.fillStyle = ink;
        pen.fillText(text, x + 5, y + height / 2 + 4);
        pen.restore();
      });
      canvas.title = this.hovered < 0 ? "" : this.hint(this.hovered);
    },
    hint(item) {
      const { names, functions, tasks, counts } = this.picture, name = names[functions[item]];
      const words = { w: "waits", q: "queued", r: "running", s: "success", f: "raised", x: "failed", c: "cancelled", u: "unknown" };
      if (counts.length) return `${name}\n${counts[item].toLocaleString()} nodes, ${this.now.shares[item]}% over`;
      return `${name}\n${words[this.now.letters[item]]}\ntask ${tasks[item]}`;
    },
    at(event) {
      return this.boxes().findIndex(([x, y, w, h]) =>
        event.offsetX >= x - 1 && event.offsetX <= x + w + 1 && event.offsetY >= y - 1 && event.offsetY <= y + h + 1);
    },
    zoom(event) {
      const scale = Math.min(200, Math.max(1, this.scale * (event.deltaY < 0 ? 1.25 : 0.8))), by = scale / this.scale;
      this.left = (event.offsetX - MARGIN) * (1 - by) + this.left * by;
      this.top = (event.offsetY - MARGIN) * (1 - by) + this.top * by;
      this.scale = scale;
      if (scale === 1) this.left = this.top = 0;
      this.draw();
    },
    press(event) { this.pressed = { x: event.clientX - this.left, y: event.clientY - this.top, moved: false }; },
    move(event) {
      if (this.pressed && event.buttons) {
        const left = event.clientX - this.pressed.x, top = event.clientY - this.pressed.y;
        if (!this.pressed.moved && Math.hypot(left - this.left, top - this.top) < 4) return;
        this.pressed.moved = true;
        [this.left, this.top] = [left, top];
        this.draw();
        return;
      }
      this.hovered = this.at(event);
      this.$refs.canvas.style.cursor = this.hovered >= 0 ? "pointer" : "";
      this.$refs.canvas.title = this.hovered < 0 ? "" : this.hint(this.hovered);
    },
    release(event) {
      const clicked = this.pressed && !this.pressed.moved ? this.at(event) : -1;
      this.pressed = null;
      if (clicked < 0) return;
      const { tasks, names, functions } = this.picture;
      openPage(tasks.length ? `/task/${tasks[clicked]}` : `/function/${encodeURIComponent(names[functions[clicked]])}`);
    },
    leave() { this.pressed = null; this.hovered = -1; },
    reset() {
      this.scale = 1;
      this.left = this.top = 0;
      this.draw();
    },
  },
};
