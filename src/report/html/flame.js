// A flame graph of each subcell.

const HUES = [[210, 15], [22, 85], [180, 55], [275, 50]];

function flame(report) {
    const { stacks } = report;
    if (!stacks?.subcells.length) return;
    const ROW = 17;
    const place = el("div", { class: "flame", role: "tree", "aria-label": "Flame graph: arrow keys move between frames, Enter zooms, Escape shows all" });
    const told = el("p", { class: "dim", role: "status" });
    const top = el("div");
    const which = el("select", { "aria-label": "Stacks of", change: () => choose() }, stacks.subcells.map((subcell, at) => el("option", { value: String(at) }, `${shown(subcell.name)} (${count(subcell.samples)})`)));
    let nodes = [];
    let zoomed = 0;
    let text = "";
    const choose = () => {
        const subcell = stacks.subcells[Number(which.value)];
        nodes = subcell.nodes.map(([caller, nameAt, kind, samples], at) => ({ at, caller, name: stacks.names[nameAt] ?? "", kind, samples, x: 0, depth: 0, self: samples }));
        const used = new Map();
        for (const node of nodes) {
            const caller = nodes[node.caller];
            if (!caller) continue;
            node.x = caller.x + (used.get(node.caller) ?? 0);
            node.depth = caller.depth + 1;
            used.set(node.caller, (used.get(node.caller) ?? 0) + node.samples);
            caller.self -= node.samples;
        }
        const own = new Map();
        for (const node of nodes) if (node.kind > 0) own.set(node.name, (own.get(node.name) ?? 0) + node.self);
        const best = [...own].filter(([, samples]) => samples > 0).sort((a, b) => b[1] - a[1]).slice(0, 20).map(([function_, samples]) => ({ function_, samples }));
        top.replaceChildren(table({ label: "Functions with most samples of their own", rows: best, columns: [
            { name: "Function", value: (row) => row.function_ }, { name: "Own samples", isNumber: true, value: (row) => row.samples },
            { name: "Part", isNumber: true, value: (row) => row.samples / Math.max(1, subcell.samples), cell: (row) => percent(row.samples / Math.max(1, subcell.samples)) },
        ] }).box);
        zoomed = 0;
        draw();
    };
    const draw = () => {
        const root = nodes[zoomed];
        if (!root) {
            place.replaceChildren();
            told.textContent = "There was no room for the call stacks of this subcell.";
            return;
        }
        const all = nodes[0].samples;
        const inside = (node) => node.x < root.x + root.samples && node.x + node.samples > root.x;
        const visible = nodes.filter((node) => inside(node) && node.samples / root.samples > 0.0005);
        let matched = 0;
        let until = -1;
        place.replaceChildren(...visible.map((node) => {
            const [from, to] = [Math.max(node.x, root.x), Math.min(node.x + node.samples, root.x + root.samples)];
            const isFound = text !== "" && node.name.toLowerCase().includes(text);
            // What calls another that is found counts once.
            if (isFound && node.x >= until) {
                matched += to - from;
                until = node.x + node.samples;
            }
            const label = `${node.name}: ${count(node.samples)} samples, ${percent(node.samples / all)}`;
            const frame = el("div", { role: "treeitem", tabindex: node.at === zoomed ? "0" : "-1", "data-at": node.at, "aria-label": label, class: isFound ? "found" : (to - from) / root.samples < 0.02 ? "narrow" : null,
                click: () => zoom(node.at), pointermove: (event) => tip(label, event), pointerleave: () => tip("") }, node.name);
            const [hue, saturation] = HUES[node.kind] ?? HUES[1];
            frame.style.left = `${((from - root.x) / root.samples) * 100}%`;
            frame.style.width = `${((to - from) / root.samples) * 100}%`;
            frame.style.top = `${node.depth * ROW}px`;
            frame.style.background = `hsl(${hue},${saturation}%,${node.at === zoomed || node.depth >= root.depth ? 70 + (node.name.length % 8) : 84}%)`;
            return frame;
        }));
        place.style.height = `${(Math.max(...visible.map((node) => node.depth)) + 1) * ROW}px`;
        told.textContent = text === "" ? `${count(root.samples)} samples of ${stacks.event}. User code: orange; inlined: blue; kernel: violet; threads: grey.` : `"${text}" is in ${percent(matched / root.samples)} of the samples.`;
    };
    const zoom = (at) => {
        zoomed = at;
        draw();
        place.querySelector(`[data-at="${at}"]`)?.focus();
    };
    place.addEventListener("keydown", (event) => {
        const at = Number(event.target.dataset.at ?? zoomed);
        const node = nodes[at];
        const others = nodes.filter((other) => other.caller === node.caller);
        const beside = (step) => others[others.indexOf(node) + step]?.at;
        const to = { ArrowUp: node.caller, ArrowDown: nodes.find((other) => other.caller === at)?.at, ArrowLeft: beside(-1), ArrowRight: beside(1) }[event.key];
        if (to >= 0) place.querySelector(`[data-at="${to}"]`)?.focus();
        else if (event.key === "Enter") zoom(at);
        else if (event.key === "Escape") zoom(0);
        else if (!event.key.startsWith("Arrow")) return;
        event.preventDefault();
    });
    section("stacks", "Call stacks",
        el("p", { class: "controls" }, "Flame graph of ", which, " ", el("button", { type: "button", click: () => zoom(0) }, "Reset zoom")), told, place,
        el("h3", {}, "Functions with most samples of their own"), top);
    choose();
    searched.push((wanted) => {
        text = wanted;
        draw();
        return ["frame", text === "" ? 0 : place.querySelectorAll(".found").length];
    });
}
