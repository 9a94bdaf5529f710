
"use strict";
// Shows the figures of a moment beside the pointer; the page says all of it without this, too.
(() => {
  const data = JSON.parse(document.getElementById("recording").textContent);
  const held = data.columns, times = held.elapsed_s, whole = Math.max(data.elapsed_s, 0.001);
  const tip = document.getElementById("tip"), cursors = document.querySelectorAll(".cursor");
  const kinds = [["clean_file", "Clean cache"], ["writeback", "Writeback"], ["dirty", "Dirty cache"],
    ["other", "Kernel and locked"], ["shmem", "Shared memory"], ["anon", "Anonymous"]];
  held.other_bytes = times.map((_, row) => kinds.reduce(
    (left, [name]) => left - (name === "other" ? 0 : held[name + "_bytes"][row]), held.usage_bytes[row]));

  const size = (value) => {
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return (unit ? value.toFixed(1) : Math.round(value)) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
  };
  const count = (value) => Math.round(value).toLocaleString("en");
  const clock = (value) => {
    const s = Math.round(value), two = (part) => String(part).padStart(2, "0");
    if (value < 60) return value.toFixed(value < 10 ? 2 : 1) + " s";
    if (s < 3600) return Math.floor(s / 60) + ":" + two(s % 60) + " min";
    return Math.floor(s / 3600) + ":" + two(Math.floor(s % 3600 / 60)) + ":" + two(s % 60) + " h";
  };
  const rowAt = (time) => {
    let low = 0, high = times.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < time) low = middle + 1; else high = middle;
    }
    return low > 0 && time - times[low - 1] < times[low] - time ? low - 1 : low;
  };
  const valueAt = (values, time) => {
    const near = rowAt(time), low = Math.max(0, times[near] > time ? near - 1 : near);
    const high = Math.min(low + 1, times.length - 1), gap = times[high] - times[low];
    const part = gap > 0 ? Math.min(1, Math.max(0, (time - times[low]) / gap)) : 0;
    return values[low] + part * (values[high] - values[low]);
  };
  const rate = (figure, name, time) => {  // the mean that the chart draws
    const span = Number(document.getElementById(figure)?.dataset.span);
    if (!span) return null;
    const start = Math.floor(Math.min(time, times[times.length - 1] - span / 2) / span) * span;
    return Math.max(0, (valueAt(held[name], start + span) - valueAt(held[name], start)) / span);
  };
  const add = (name, text, value) => {
    const line = tip.appendChild(document.createElement("div"));
    const left = line.appendChild(document.createElement("span"));
    if (name) left.appendChild(document.createElement("i")).className = name;
    left.append(text);
    line.appendChild(document.createElement("span")).textContent = value;
    return line;
  };
  const fill = (time) => {
    const row = rowAt(time);
    tip.replaceChildren();
    const names = data.spans.filter((span) => span.start_s <= time && (span.stop_s ?? whole) >= time);
    add("", clock(time), names.map((span) => span.name).join(" › ")).className = "at";
    for (const [name, title] of kinds) {
      const value = held[name + "_bytes"][row];
      if (value > 0) add(name, title, size(value));
    }
    if (held.limit_bytes[row] !== null) {
      const left = held.limit_bytes[row] - held.usage_bytes[row] + held.clean_file_bytes[row];
      add("", "Room left", size(Math.max(0, left)));
    }
    for (const [name, title] of [["read", "Read"], ["written", "Written"]]) {
      const value = rate("devices", name + "_bytes", time);
      if (value !== null) add(name, title, size(value) + "/s");
    }
    const rows = rate("loaders", "loader_rows", time);
    if (rows !== null) add("rows", "Loader rows", count(rows) + "/s");
  };
  const show = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    for (const cursor of cursors) { cursor.hidden = false; cursor.style.left = 100 * part + "%"; }
    fill(part * whole);
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const right = event.clientX + 16, left = event.clientX - tip.offsetWidth - 16;
    tip.style.left = Math.max(8, Math.min(right > room && left > 8 ? left : right, room)) + "px";
    const above = event.clientY - tip.offsetHeight - 16;
    tip.style.top = (above > 8 ? above : event.clientY + 16) + "px";
  };
  const hide = () => { tip.hidden = true; for (const cursor of cursors) cursor.hidden = true; };
  for (const plot of document.querySelectorAll(".plot")) {
    for (const name of ["pointermove", "pointerdown"]) plot.addEventListener(name, show);
    plot.addEventListener("pointercancel", hide);
    // A finger that is lifted leaves, too: what it showed stays until the next touch elsewhere.
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  }
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot")) hide(); });
})();
