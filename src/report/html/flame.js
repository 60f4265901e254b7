// A flame graph of each subcell.

const UNKNOWN = "[unknown]";

/**
 * The frames of a subcell, each after its caller. A run of frames without a name is one frame, whose `run` is how many frames the longest
 * of its stacks has there; frames of one name that thereby have the same caller become one.
 */
function framesOf(subcell, names) {
    const { nodes } = subcell;
    const children = nodes.map(() => []);
    nodes.forEach(([caller], at) => children[caller]?.push(at));
    const isUnknown = (at) => names[nodes[at][1]] === UNKNOWN;
    const frames = [];
    // No recursion: a stack may be deeper than the browser's.
    const waiting = nodes.length ? [{ caller: -1, of: [0] }] : [];
    while (waiting.length) {
        const { caller, of } = waiting.pop();
        const [, nameAt, kind] = nodes[of[0]];
        const frame = { at: frames.length, caller, name: names[nameAt] ?? "", kind, run: 1, samples: of.reduce((sum, at) => sum + nodes[at][3], 0) };
        frames.push(frame);
        let called = of.flatMap((at) => children[at]);
        while (isUnknown(of[0]) && called.some(isUnknown)) {
            frame.run += 1;
            called = called.flatMap((at) => (isUnknown(at) ? children[at] : [at]));
        }
        const groups = new Map();
        for (const at of called) {
            const key = `${nodes[at][1]} ${nodes[at][2]}`;
            groups.set(key, [...(groups.get(key) ?? []), at]);
        }
        waiting.push(...[...groups.values()].reverse().map((group) => ({ caller: frame.at, of: group })));
    }
    return frames;
}

/** What a frame is called in the graph. */
const frameName = (frame) => (frame.run > 1 ? `${frame.name} (up to ${frame.run} frames)` : frame.name);

/** The part of the samples whose stack has frames without a name, and how to give them one; `null` if there are none. */
function unknownPart(frames) {
    // What is below a frame without a name counts with it.
    const isWithin = new Set();
    let samples = 0;
    for (const frame of frames) {
        if (!isWithin.has(frame.caller) && frame.name === UNKNOWN) samples += frame.samples;
        if (isWithin.has(frame.caller) || frame.name === UNKNOWN) isWithin.add(frame.at);
    }
    if (samples === 0) return null;
    return el("p", {}, `${percent(samples / frames[0].samples)} of the samples have frames without a name, ${UNKNOWN}: code that keeps no frame pointers, or has no file. A run of them is drawn as one. Record with `, el("code", {}, "--unwind dwarf"), " to find the callers in code without frame pointers.");
}

const HUES = [[210, 15], [22, 85], [180, 55], [275, 50]];

function flame(report) {
    const { stacks } = report;
    if (!stacks?.subcells.length) return;
    const ROW = 17;
    const place = el("div", { class: "flame", role: "tree", "aria-label": "Flame graph: arrow keys move between frames, Enter zooms, Escape shows all" });
    const told = el("p", { class: "dim", role: "status" });
    const hint = el("div");
    const top = el("div");
    const which = el("select", { "aria-label": "Stacks of", change: () => choose() }, stacks.subcells.map((subcell, at) => el("option", { value: String(at) }, `${shown(subcell.name)} (${count(subcell.samples)})`)));
    let nodes = [];
    let zoomed = 0;
    let text = "";
    const choose = () => {
        const subcell = stacks.subcells[Number(which.value)];
        nodes = framesOf(subcell, stacks.names).map((frame) => ({ ...frame, x: 0, depth: 0, self: frame.samples }));
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
        hint.replaceChildren(...[unknownPart(nodes)].filter(Boolean));
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
            const label = `${frameName(node)}: ${count(node.samples)} samples, ${percent(node.samples / all)}`;
            const frame = el("div", { role: "treeitem", tabindex: node.at === zoomed ? "0" : "-1", "data-at": node.at, "aria-label": label, class: isFound ? "found" : (to - from) / root.samples < 0.02 ? "narrow" : null,
                click: () => zoom(node.at), pointermove: (event) => tip(label, event), pointerleave: () => tip("") }, frameName(node));
            const [hue, saturation] = HUES[node.kind] ?? HUES[1];
            frame.style.left = `${((from - root.x) / root.samples) * 100}%`;
            frame.style.width = `${((to - from) / root.samples) * 100}%`;
            frame.style.top = `${node.depth * ROW}px`;
            frame.style.background = `hsl(${hue},${saturation}%,${node.at === zoomed || node.depth >= root.depth ? 70 + (node.name.length % 8) : 84}%)`;
            return frame;
        }));
        place.style.height = `${(Math.max(...visible.map((node) => node.depth)) + 1) * ROW}px`;
        told.textContent = text === "" ? `${shown(stacks.subcells[Number(which.value)].name)}: ${count(root.samples)} samples of ${stacks.event}, taken for the call stacks alone. User code: orange; inlined: blue; kernel: violet; threads: grey.` : `"${text}" is in ${percent(matched / root.samples)} of the samples.`;
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
        el("p", { class: "controls" }, "Flame graph of ", which, " ", el("button", { type: "button", click: () => zoom(0) }, "Reset zoom")), told, place, hint,
        el("h3", {}, "Functions with most samples of their own"), top);
    choose();
    searched.push((wanted) => {
        text = wanted;
        draw();
        return ["frame", text === "" ? 0 : place.querySelectorAll(".found").length];
    });
}
