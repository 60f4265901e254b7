// The sharing matrix: threads against threads, on a canvas.

/** How threads are ordered: the label of each one's group, and what orders the threads of a group. */
const ORDERS = {
    subcell: (thread) => [thread.subcell ?? "(no cell)", thread.process ?? `pid ${thread.pid}`, thread.comm ?? ""],
    process: (thread) => [`${thread.process ?? "process"} (${thread.pid})`, thread.comm ?? ""],
    name: (thread) => [(thread.comm ?? "(unknown)").replace(/\d+$/, ""), thread.comm ?? ""],
    cgroup: (thread) => [thread.cgroup ?? "(unknown cgroup)", thread.comm ?? ""],
    samples: () => [""],
};

/** The height of a label, in CSS pixels. */
const LABEL = 13;

/**
 * Moves labels so that none covers another, each as near to the middle of its rows as the others let it; those with the fewest rows have no
 * label where there is no room.
 */
function spread(labels, height) {
    const room = Math.floor(height / LABEL);
    const most = new Set([...labels].sort((a, b) => b.rows - a.rows).slice(0, room));
    const kept = labels.filter((it) => most.has(it));
    // Without the room of the labels before it, each wants to be at or below the one before: those that do not become one block.
    const blocks = [];
    kept.forEach((label, at) => {
        let block = { sum: label.middle - at * LABEL, size: 1 };
        while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].size > block.sum / block.size) {
            const before = blocks.pop();
            block = { sum: before.sum + block.sum, size: before.size + block.size };
        }
        blocks.push(block);
    });
    const last = height - LABEL / 2 - (kept.length - 1) * LABEL;
    const tops = blocks.flatMap(({ sum, size }) => new Array(size).fill(Math.max(LABEL / 2, Math.min(last, sum / size))));
    return kept.map((label, at) => ({ ...label, at: tops[at] + at * LABEL }));
}

/** A line from each label that was moved to its rows. */
function leaders(labels, height) {
    const made = (tag, attributes) => {
        const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
        return element;
    };
    const drawing = made("svg", { class: "leaders", viewBox: `0 0 16 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(...labels.filter((it) => Math.abs(it.at - it.middle) > 1).map((it) => made("polyline", { points: `0,${it.at} 4,${it.at} 12,${it.middle} 16,${it.middle}` })));
    return drawing;
}

/** Which threads share anything with another one. */
function sharingThreads(matrix, withHubs) {
    const regions = matrix.regions.filter((region) => region.sharers.length > 1 && (withHubs || !region.hub));
    return new Set(regions.flatMap((region) => region.sharers.map(([thread]) => thread)));
}

/** The shared misses of each pair: of each region those of the thread that has fewer. And the possible misses of each thread. */
function sharedMisses(matrix, withHubs) {
    const n = matrix.threads.length;
    const values = new Float32Array(n * n);
    const total = new Float64Array(n);
    for (const region of matrix.regions) {
        if (region.hub && !withHubs) continue;
        const { sharers } = region;
        for (let i = 0; i < sharers.length; i += 1) {
            const [a, x] = sharers[i];
            total[a] += x;
            for (let j = i + 1; j < sharers.length; j += 1) {
                const [b, y] = sharers[j];
                const least = x < y ? x : y;
                values[a * n + b] += least;
                values[b * n + a] += least;
            }
        }
    }
    return { values, total };
}

/** Viridis, about: dark to bright, and readable for the colour-blind. */
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function colour(part) {
    const at = Math.max(0, Math.min(1, part)) * (SCALE.length - 1);
    const low = Math.min(SCALE.length - 2, Math.floor(at));
    return SCALE[low].map((from, k) => Math.round(from + (SCALE[low + 1][k] - from) * (at - low)));
}

function matrixSection(report) {
    const { matrix } = report;
    const { threads } = matrix;
    const n = threads.length;
    if (n < 2) return null;
    // Of the pixels of the canvas; and how many threads are in it.
    let SIZE = 240;
    let shownThreads = n;
    const canvas = el("canvas", { tabindex: "0", role: "application" });
    const panel = el("div", { class: "panel", "aria-live": "polite", tabindex: "-1", "aria-label": "What they share" });
    const labels = el("div", { class: "dim controls" });
    const side = el("div", { class: "side", "aria-hidden": "true" });
    const lead = el("div", { class: "lead-lines" });
    const others = el("button", { type: "button", click: () => {
        state.withAll = !state.withAll;
        arrange(order.value);
    } });
    const othersRow = el("div", { class: "others" }, others);
    const nothing = el("p");
    const zoomHint = el("span", { class: "dim" }, " · the wheel zooms, dragging moves, key 0 resets");
    const drawing = el("div", { class: "drawing" }, side, lead, canvas);
    const regionsOf = Array.from({ length: n }, () => new Map());
    matrix.regions.forEach((region, at) => region.sharers.forEach(([thread, misses]) => regionsOf[thread].set(at, misses)));
    const state = { withHubs: false, withAll: false, order: [], groups: [], view: { x: 0, y: 0, size: n }, at: null, found: new Set() };
    let { values, total } = sharedMisses(matrix, false);
    /** Makes anew what the panel shows. */
    let again = () => {};
    let picture = null;
    let most = 0;

    // The table of the answer has the subcells in the same order.
    const places = new Map(report.cells.flatMap((cell) => cell.subcells.map((subcell) => pathOf(cell, subcell))).map((path, at) => [path, at]));
    const placeOf = (thread) => places.get(thread.subcell) ?? places.size;
    const arrange = (by) => {
        const keys = threads.map(ORDERS[by]);
        const compare = (a, b) => keys[a].map((part, k) => part.localeCompare(keys[b][k], "en", { numeric: true })).find((it) => it !== 0) ?? a - b;
        const isSharing = sharingThreads(matrix, state.withHubs);
        state.order = threads.map((_, at) => at).filter((at) => state.withAll || isSharing.has(at));
        if (by === "subcell") state.order.sort((a, b) => placeOf(threads[a]) - placeOf(threads[b]) || compare(a, b));
        else if (by !== "samples") state.order.sort(compare);
        shownThreads = state.order.length;
        SIZE = Math.min(720, Math.max(120, shownThreads * 24));
        canvas.width = SIZE;
        canvas.height = SIZE;
        canvas.setAttribute("aria-label", `Sharing matrix of ${shownThreads} threads: arrow keys move, Enter shows what a pair shares, plus and minus zoom, 0 resets`);
        const idle = n - isSharing.size;
        othersRow.hidden = idle === 0;
        othersRow.classList.toggle("alone", shownThreads === 0);
        othersRow.style.maxWidth = `${Math.max(SIZE, 240)}px`;
        zoomHint.hidden = shownThreads < 30;
        others.textContent = state.withAll ? `Hide the ${counted(idle, "thread")} that ${idle === 1 ? "shares" : "share"} nothing` : `+ ${counted(idle, "thread")} that ${idle === 1 ? "shares" : "share"} nothing`;
        others.setAttribute("aria-expanded", String(state.withAll));
        drawing.hidden = shownThreads === 0;
        nothing.hidden = isSharing.size > 0;
        nothing.textContent = `No two of the ${n} threads were seen to share memory${matrix.regions.some((region) => region.hub) && !state.withHubs ? ", but for hubs" : ""}.`;
        state.groups = [];
        state.order.forEach((thread, row) => {
            const label = keys[thread][0];
            const last = state.groups[state.groups.length - 1];
            if (last && last.label === label) last.end = row + 1;
            else state.groups.push({ label, begin: row, end: row + 1 });
        });
        const chip = (label, begin, end) => [el("button", { type: "button", click: () => zoom(begin, begin, end - begin) }, `${shown(label)} (${end - begin})`), " "];
        const chips = state.groups.slice(0, 40).flatMap((group) => chip(group.label, group.begin, group.end));
        labels.replaceChildren(...(by === "samples" ? ["Most samples first."] : state.groups.length < 2 ? chips : [...chip("all", 0, shownThreads), ...chips]));
        state.view = { x: 0, y: 0, size: shownThreads };
        state.at = null;
        paint();
    };
    /** Makes the picture of all pairs, a pixel each. */
    const paint = () => {
        const begin = performance.now();
        const size = shownThreads;
        if (size === 0) {
            most = 0;
            canvas.dataset.drawn = "0";
            return;
        }
        const off = document.createElement("canvas");
        off.width = size;
        off.height = size;
        const context = off.getContext("2d");
        const image = context.createImageData(size, size);
        const pixels = new Uint32Array(image.data.buffer);
        const isDark = document.documentElement.dataset.theme === "dark";
        const rgb = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
        const none = rgb(isDark ? [29, 34, 40] : [245, 247, 249]);
        const self = rgb(isDark ? [90, 98, 108] : [190, 197, 205]);
        const steps = Array.from({ length: 256 }, (_, at) => rgb(colour(at / 255)));
        most = values.reduce((a, b) => (a > b ? a : b), 0);
        const scale = 255 / Math.log1p(Math.max(most, 1e-9));
        let drawn = 0;
        for (let row = 0; row < size; row += 1) {
            const from = state.order[row] * n;
            for (let column = 0; column < size; column += 1) {
                const value = values[from + state.order[column]];
                if (value > 0) drawn += 1;
                pixels[row * size + column] = row === column ? self : value > 0 ? steps[Math.min(255, Math.round(Math.log1p(value) * scale))] : none;
            }
        }
        context.putImageData(image, 0, 0);
        picture = off;
        draw();
        canvas.dataset.drawn = String(drawn);
        canvas.dataset.ms = (performance.now() - begin).toFixed(1);
    };
    const draw = () => {
        if (shownThreads === 0) return;
        const context = canvas.getContext("2d");
        const { x, y, size } = state.view;
        const cell = SIZE / size;
        context.imageSmoothingEnabled = false;
        context.clearRect(0, 0, SIZE, SIZE);
        context.drawImage(picture, x, y, size, size, 0, 0, SIZE, SIZE);
        const style = getComputedStyle(document.documentElement);
        context.strokeStyle = style.getPropertyValue(state.groups.length > 40 ? "--line" : "--dim");
        context.lineWidth = 1;
        context.beginPath();
        for (const group of state.groups.length < 200 ? state.groups : []) {
            for (const [start, vertical] of [[group.begin - x, true], [group.begin - y, false]]) {
                const at = Math.round(start * cell) + 0.5;
                if (start <= 0 || at > SIZE) continue;
                context.moveTo(vertical ? at : 0, vertical ? 0 : at);
                context.lineTo(vertical ? at : SIZE, vertical ? SIZE : at);
            }
        }
        context.stroke();
        drawSide();
        // What the search found is marked at the edges.
        context.fillStyle = "#e600e6";
        state.order.forEach((thread, row) => {
            if (!state.found.has(thread)) return;
            context.fillRect((row - x) * cell, 0, Math.max(1, cell), 4);
            context.fillRect(0, (row - y) * cell, 4, Math.max(1, cell));
        });
        if (state.at) {
            context.strokeStyle = "#e600e6";
            context.lineWidth = 2;
            context.strokeRect((state.at.column - x) * cell, (state.at.row - y) * cell, Math.max(3, cell), Math.max(3, cell));
        }
    };
    /** Names the rows at their side: threads where there is room, or else groups. */
    const drawSide = () => {
        const { y, size } = state.view;
        const cell = SIZE / size;
        const rows = cell >= LABEL ? state.order.map((thread, row) => ({ label: threadName(threads[thread]), begin: row, end: row + 1 })) : state.groups;
        const labels = spread(rows.flatMap(({ label, begin, end }) => {
            const [from, to] = [Math.max(begin, y), Math.min(end, y + size)];
            return to > from && label ? [{ label, rows: to - from, middle: ((from + to) / 2 - y) * cell }] : [];
        }), SIZE);
        side.replaceChildren(...labels.map(({ label, at }) => {
            const text = el("div", { title: label }, name(label));
            text.style.top = `${(at / SIZE) * 100}%`;
            return text;
        }));
        lead.replaceChildren(leaders(labels, SIZE));
    };
    const zoom = (x, y, size) => {
        const next = Math.max(Math.min(2, shownThreads), Math.min(shownThreads, size));
        state.view = { size: next, x: Math.max(0, Math.min(shownThreads - next, x)), y: Math.max(0, Math.min(shownThreads - next, y)) };
        canvas.style.touchAction = next < shownThreads ? "none" : "pan-y";
        draw();
    };
    const pairText = (a, b) => {
        if (a === b) return `${threadName(threads[a])}\n${threads[a].subcell ?? "(no cell)"}\nits possible misses on shared regions: ${count(total[a])}`;
        const value = values[a * n + b];
        const common = [...regionsOf[a].keys()].filter((at) => regionsOf[b].has(at) && (state.withHubs || !matrix.regions[at].hub)).length;
        const least = Math.min(total[a], total[b]);
        const part = least > 0 && value > 0 ? `, ${percent(Math.min(1, value / least))} of those of the one that has fewer` : "";
        const side = (thread) => `${threadName(thread)}, ${thread.process ?? `pid ${thread.pid}`}, ${thread.subcell ?? "(no cell)"}`;
        return `${side(threads[a])}\n${side(threads[b])}\n${count(value)} shared misses${part}; ${common} common ${common === 1 ? "region" : "regions"}`;
    };
    const showThread = (a) => {
        const others = threads.map((_, b) => b).filter((b) => b !== a && values[a * n + b] > 0).sort((b, c) => values[a * n + c] - values[a * n + b]);
        const thread = threads[a];
        panel.replaceChildren(
            el("h3", {}, name(threadName(thread))),
            el("p", {}, name(`${thread.process ?? "process"} (${thread.pid}), ${thread.subcell ?? "(no cell)"}, ${count(thread.samples)} samples`), el("br"), el("span", { class: "dim" }, name(thread.cgroup ?? ""))),
            others.length ? table({ label: "It shares most with", rows: others.slice(0, 100), limit: 20, columns: [
                { name: "Shares most with", value: (b) => threadName(threads[b]), cell: (b) => el("button", { type: "button", click: () => { showPair(a, b); panel.focus(); } }, name(threadName(threads[b]))) },
                { name: "Subcell", value: (b) => threads[b].subcell ?? "(no cell)" },
                { name: "Shared misses", isNumber: true, value: (b) => values[a * n + b] },
            ] }).box : el("p", {}, "It shares nothing with a thread of the matrix."));
        setAddress(`thread=${thread.tid}`);
        again = () => showThread(a);
    };
    const showPair = (a, b) => {
        if (a === b) return showThread(a);
        const regions = matrix.regions.map((region, at) => ({ at, ...region, a: regionsOf[a].get(at), b: regionsOf[b].get(at) })).filter((it) => it.a !== undefined && it.b !== undefined);
        const of = (line, thread) => line.by_thread.find(([of]) => of === thread);
        const pages = matrix.pages.map((page) => ({ ...page, lines: page.lines.map((line) => ({ ...line, a: of(line, a), b: of(line, b) })).filter((line) => line.a && line.b) })).filter((page) => page.lines.length);
        const did = (use) => `${use[1]} / ${use[2]}`;
        const [x, y] = [threads[a], threads[b]].map(threadName);
        panel.replaceChildren(
            el("h3", {}, name(x), " and ", name(y)),
            el("p", {}, `${count(values[a * n + b])} shared misses: they would be avoided if both used one cache.`),
            regions.length ? table({ label: "Regions that both use", rows: regions, limit: 20, columns: [
                { name: "Region", value: (row) => row.memory }, { name: "Size", isNumber: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
                { name: x, isNumber: true, value: (row) => row.a, title: "Its possible misses there" }, { name: y, isNumber: true, value: (row) => row.b, title: "Its possible misses there" },
                ...(regions.some((row) => row.hub) ? [{ name: "Hub", value: (row) => (row.hub ? "hub" : "") }] : []),
            ] }).box : el("p", {}, "They have no region in common."),
            pages.length ? table({ label: "Lines that both touched", rows: pages.flatMap((page) => page.lines), limit: 30, isDense: true, columns: [
                { name: "Line that both touched", value: (row) => row.memory },
                { name: "Sharing", value: (row) => row.sharing, cell: (row) => sharingTag(row.sharing) },
                { name: `${x}: loads / stores`, isNumber: true, value: (row) => row.a[1] + row.a[2], cell: (row) => did(row.a) },
                { name: `${y}: loads / stores`, isNumber: true, value: (row) => row.b[1] + row.b[2], cell: (row) => did(row.b) },
            ] }).box : el("p", { class: "dim" }, "No line of the listed pages was seen with both of them: they use different lines of the regions, or their samples are few."));
        setAddress(`pair=${threads[a].tid},${threads[b].tid}`);
        again = () => showPair(a, b);
    };
    const cellAt = (event) => {
        const box = canvas.getBoundingClientRect();
        const place = (at, from) => Math.floor(from + (at / box.width) * state.view.size);
        const [column, row] = [place(event.clientX - box.left, state.view.x), place(event.clientY - box.top, state.view.y)];
        return row >= 0 && column >= 0 && row < shownThreads && column < shownThreads ? { row, column } : null;
    };
    const choose = (at, isOpened) => {
        state.at = at;
        const { x, y, size } = state.view;
        if (at.column < x || at.column >= x + size || at.row < y || at.row >= y + size) zoom(at.column - size / 2, at.row - size / 2, size);
        draw();
        const [a, b] = [state.order[at.row], state.order[at.column]];
        if (isOpened) showPair(a, b);
        else say(pairText(a, b));
    };
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
        dragged = { x: event.clientX, y: event.clientY, view: { ...state.view }, isFar: false };
    });
    canvas.addEventListener("pointermove", (event) => {
        if (dragged && event.buttons) {
            const cell = canvas.getBoundingClientRect().width / state.view.size;
            dragged.isFar ||= Math.hypot(event.clientX - dragged.x, event.clientY - dragged.y) > 4;
            if (dragged.isFar) zoom(dragged.view.x - (event.clientX - dragged.x) / cell, dragged.view.y - (event.clientY - dragged.y) / cell, state.view.size);
        }
        const at = cellAt(event);
        tip(at ? pairText(state.order[at.row], state.order[at.column]) : "", event);
    });
    canvas.addEventListener("pointerleave", () => tip(""));
    canvas.addEventListener("click", (event) => {
        const at = cellAt(event);
        if (at && !dragged?.isFar) choose(at, true);
        dragged = null;
    });
    canvas.addEventListener("wheel", (event) => {
        const size = Math.max(8, Math.min(shownThreads, state.view.size * (event.deltaY > 0 ? 1.25 : 0.8)));
        // What cannot be zoomed further scrolls the page.
        if (shownThreads < 30 || size === state.view.size) return;
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        const keep = (at, from) => from + (at / box.width) * (state.view.size - size);
        zoom(keep(event.clientX - box.left, state.view.x), keep(event.clientY - box.top, state.view.y), size);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
        const at = state.at ?? { row: 0, column: 0 };
        const group = state.groups.findIndex((it) => at.row >= it.begin && at.row < it.end);
        const last = shownThreads - 1;
        const to = (row, column) => choose({ row: Math.max(0, Math.min(last, row)), column: Math.max(0, Math.min(last, column)) });
        const keys = {
            ArrowUp: () => to(at.row - 1, at.column), ArrowDown: () => to(at.row + 1, at.column), ArrowLeft: () => to(at.row, at.column - 1), ArrowRight: () => to(at.row, at.column + 1),
            Home: () => to(at.row, 0), End: () => to(at.row, last),
            PageUp: () => to(state.groups[Math.max(0, group - 1)].begin, at.column), PageDown: () => to(state.groups[Math.min(state.groups.length - 1, group + 1)].begin, at.column),
            Enter: () => choose(at, true), Escape: () => {
                panel.replaceChildren();
                again = () => {};
                setAddress("matrix");
            },
            "+": () => zoom(at.column - state.view.size / 4, at.row - state.view.size / 4, state.view.size / 2), "-": () => zoom(state.view.x - state.view.size / 2, state.view.y - state.view.size / 2, state.view.size * 2), 0: () => zoom(0, 0, shownThreads),
        };
        if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        keys[event.key]();
    });
    const order = el("select", { id: "order", change: () => arrange(order.value) }, Object.keys(ORDERS).map((by) => el("option", { value: by }, by)));
    const hubs = el("input", { type: "checkbox", id: "hubs", change: () => {
        state.withHubs = hubs.checked;
        ({ values, total } = sharedMisses(matrix, hubs.checked));
        arrange(order.value);
        strongest();
        again();
    } });
    const legend = el("span", { class: "legend", role: "img", "aria-label": "Colours from few to many shared misses, logarithmic" });
    legend.style.background = `linear-gradient(to right, ${SCALE.map(([r, g, b]) => `rgb(${r},${g},${b})`).join(",")})`;
    const end = el("span");
    const pairs = el("div");
    const pairsTitle = el("summary");
    const pairsPart = el("details", { open: n <= 40 }, pairsTitle, pairs);
    let pairTable = null;
    let searchedText = "";
    const strongest = () => {
        const list = [];
        let least = 0;
        for (let a = 0; a < n; a += 1) {
            for (let b = a + 1; b < n; b += 1) {
                const value = values[a * n + b];
                if (value <= least) continue;
                list.push({ a, b, value });
                if (list.length > 5000) {
                    list.sort((x, y) => y.value - x.value);
                    list.length = 50;
                    least = list[49].value;
                }
            }
        }
        list.sort((x, y) => y.value - x.value);
        list.length = Math.min(50, list.length);
        pairTable = table({ label: "Strongest pairs", rows: list, key: (row) => `${threads[row.a].tid},${threads[row.b].tid}`, columns: [
            { name: "Thread", value: (row) => threadName(threads[row.a]) }, { name: "and", value: (row) => threadName(threads[row.b]) },
            { name: "Subcells", isMinor: true, value: (row) => [...new Set([threads[row.a].subcell ?? "(no cell)", threads[row.b].subcell ?? "(no cell)"])].join(", ") },
            { name: "Shared misses", isNumber: true, value: (row) => row.value, cell: (row) => el("button", { type: "button", click: () => showPair(row.a, row.b) }, count(row.value)) },
        ] });
        pairTable.search(searchedText);
        pairs.replaceChildren(pairTable.box);
        pairsPart.hidden = list.length === 0;
        pairsTitle.textContent = list.length < 50 ? `All ${counted(list.length, "pair")} that share, strongest first` : "The 50 strongest pairs";
        end.textContent = ` ${count(most)} (logarithmic)`;
    };
    section("matrix", "Who shares with whom",
        el("p", { class: "dim" }, "Each row and column is a thread; a coloured square is a pair that shares memory. Its number is, summed over their regions (data structures), the possible misses of the thread that has fewer: these would be avoided if both used one cache. (A sample can have several accesses.)", el("span", { class: "screen" }, " Click a square for the memory, the diagonal for one thread.")),
        el("p", { class: "controls" }, el("label", { for: "order" }, "Order by "), order, " ", hubs, " ", el("label", { for: "hubs", title: "Pages that nearly all threads use: they do not tell which threads belong together" }, "with hubs"), zoomHint),
        el("p", {}, "Shared misses: 0 ", legend, end),
        labels, nothing,
        el("div", { class: "matrix" }, el("div", { class: "drawn" }, drawing, othersRow), el("div", { class: "beside" }, panel, pairsPart)));
    arrange("subcell");
    strongest();
    searched.push((text) => {
        state.found = new Set(text ? threads.map((_, at) => at).filter((at) => [threadName(threads[at]), threads[at].process, threads[at].cgroup, threads[at].subcell].join("\n").toLowerCase().includes(text)) : []);
        draw();
        searchedText = text;
        pairTable.search(text);
        return ["matrix thread", state.found.size];
    });
    const byTid = new Map(threads.map((thread, at) => [String(thread.tid), at]));
    return {
        repaint: paint,
        showThread: (tid) => byTid.has(tid) && (showThread(byTid.get(tid)), true),
        showPair: (a, b) => byTid.has(a) && byTid.has(b) && (showPair(byTid.get(a), byTid.get(b)), canvas.scrollIntoView({ block: "center" }), true),
    };
}
