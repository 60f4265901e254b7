// All threads, what the scheduler did with each subcell, and the run over time.

function threadsSection(report) {
    // The number of a community says something only where a subcell has several.
    const communities = new Map();
    for (const cell of report.cells) for (const subcell of cell.subcells) communities.set(pathOf(cell, subcell), new Set(subcell.threads.map((thread) => thread.verdict).filter((it) => it.startsWith("community "))).size);
    const verdictOf = (row) => (row.verdict.startsWith("community ") && communities.get(row.path) === 1 ? "community" : row.verdict);
    const rows = report.cells.flatMap((cell) => cell.subcells.flatMap((subcell) => subcell.threads.map((thread) => ({ path: pathOf(cell, subcell), ...thread }))));
    const hasHints = rows.some((row) => row.hint !== undefined);
    const made = table({
        label: "Threads", rows, key: (row) => String(row.tid), sort: "Samples",
        columns: [
            { name: "Thread", value: (row) => row.comm ?? "(unknown)" }, { name: "Tid", isNumber: true, value: (row) => row.tid, cell: (row) => String(row.tid) },
            { name: "Pid", isNumber: true, isMinor: true, value: (row) => row.pid, cell: (row) => String(row.pid) },
            ...(hasHints ? [{ name: "Hint", isNumber: true, value: (row) => row.hint, cell: (row) => String(row.hint ?? "-") }] : []),
            { name: "Subcell", value: (row) => row.path }, { name: "Samples", isNumber: true, value: (row) => row.samples }, { name: "Verdict", isMinor: true, value: (row) => verdictOf(row) },
        ],
    });
    section("threads", "Threads", made.box);
    searched.push((text) => ["row", made.search(text)]);
    return made;
}

function scheduling(report) {
    const { scheduling: sched, wakeups } = report;
    if (!sched) return;
    const rows = sched.subcells;
    // Of few wakeups the 99th percentile is the longest of them.
    const FEW = 100;
    const timed = (row) => row.latency_count ?? row.wakeups;
    const latency = (name, value, title) => ({ name, isNumber: true, value, title, cell: (row) => el("span", { class: timed(row) < FEW ? "dim" : null, title: timed(row) < FEW ? `Of ${counted(timed(row), "wakeup")} only` : null }, duration(value(row))) });
    const within = (what, part) => (part && part.wakeups > 0 ? el("p", {}, `${what}: ${count(part.wakeups)}, of which ${percent(part.subcell)} stay within a subcell (or within a catch-all) and ${percent(part.llc)} ran within one last-level cache.`) : null);
    section("scheduling", "Scheduling",
        el("p", { class: "dim" }, `What the scheduler did in ${number(sched.seconds, 1)} s with the threads of each subcell${rows.some((row) => row.name === "(no cell)") ? "; (no cell) are threads without memory samples, of other programs too" : ""}.`),
        table({
            label: "Scheduling by subcell", rows, key: (row) => row.name, isDense: true,
            columns: [
                { name: "Subcell", value: (row) => row.name }, { name: "Threads", isNumber: true, value: (row) => row.threads },
                { name: "CPUs used", isNumber: true, value: (row) => row.run_ns / 1e9 / Math.max(sched.seconds, 1e-9), cell: (row) => number(row.run_ns / 1e9 / Math.max(sched.seconds, 1e-9), 2) },
                { name: "Waited", isNumber: true, value: (row) => row.wait_ns, cell: (row) => duration(row.wait_ns), title: "Time runnable without a CPU" },
                { name: "Waits", isNumber: true, value: (row) => row.waits, title: "How often a thread was runnable without a CPU" },
                { name: "Mean wait", isNumber: true, title: "After a wakeup, and after it lost its CPU to another thread", value: (row) => (row.waits ? row.wait_ns / row.waits : null), cell: (row) => duration(row.waits ? row.wait_ns / row.waits : null) },
                { name: "Longest wait", isNumber: true, value: (row) => row.wait_max_ns, cell: (row) => duration(row.wait_max_ns) },
                { name: "Wakeups", isNumber: true, value: (row) => timed(row), title: "Wakeups of its threads with a known time to the CPU, from which the latencies beside are computed" },
                latency("Wakeup latency p50", (row) => row.latency_p50_ns, "From a wakeup to the CPU: median"),
                latency("p99", (row) => row.latency_p99_ns, "From a wakeup to the CPU: 99 % are as short. Of fewer than 100 wakeups it is grey: the longest of few"),
                latency("max", (row) => row.latency_max_ns, "From a wakeup to the CPU: the longest"),
                { name: "Switches", isNumber: true, value: (row) => row.switches }, { name: "involuntary", isNumber: true, value: (row) => row.involuntary },
                { name: "Migrations", isNumber: true, value: (row) => row.migrations }, { name: "to another LLC", isNumber: true, value: (row) => row.migrations_llc },
                { name: "to another node", isNumber: true, value: (row) => row.migrations_node },
            ],
        }).box,
        lostEvents(report).part > MATTERS ? el("p", {}, el("b", {}, `${percent(lostEvents(report).part)} of the events were lost: `), "the counts are too low, and times may be.") : null,
        within("Wakeups of threads by threads", wakeups?.all), within("Of these between threads that share memory", wakeups?.carrying),
        sched.wakeups.length ? table({ label: "Wakeups between subcells", rows: sched.wakeups, limit: 30, columns: [
            { name: "Waker in", value: (row) => row.a }, { name: "Woken in", value: (row) => row.b }, { name: "Wakeups", isNumber: true, value: (row) => row.wakeups },
        ] }).box : null);
}

const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997755", "#5566cc", "#dd8833", "#779944"];
const colourOf = (at) => COLOURS[at] ?? `hsl(${Math.round(at * 137.5) % 360}, 55%, 50%)`;

/** The run over time; drawn anew for another width or theme. */
function time(report) {
    const { timeline } = report;
    const subcells = timeline.subcells.filter((subcell) => subcell.samples.some((it) => it > 0));
    const steps = Math.max(timeline.records.length, ...timeline.subcells.map((subcell) => subcell.samples.length));
    // A profile without times is one step.
    if (steps < 2 || timeline.step_ns === 0) return null;
    const seconds = timeline.step_ns / 1e9;
    // The first and the last step are not whole: as rates they would look as if there was less work.
    const isWhole = steps > 3;
    const numbers = Array.from({ length: steps }, (_, at) => at).slice(...(isWhole ? [1, -1] : [0]));
    const x = numbers.map((at) => at * seconds);
    const rate = (values) => numbers.map((at) => (values[at] ?? 0) / seconds);
    const place = el("div");
    const lost = timeline.lost.reduce((a, b) => a + b, 0);
    const charts = [];
    const draw = (wanted) => {
        charts.splice(0).forEach((chart) => chart.destroy());
        const style = getComputedStyle(document.documentElement);
        const [text, grid] = ["--text", "--line"].map((it) => style.getPropertyValue(it).trim());
        const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
        const width = wanted ?? Math.max(280, place.clientWidth || 800);
        const chart = (title, series, data, range) => {
            const box = el("div", { class: "chart", role: "img", "aria-label": `${title}; the numbers are in the table below` });
            place.append(box);
            const scales = { x: { time: false }, y: { range: range ?? ((_, __, top) => [0, Math.max(top * 1.05, 1)]) } };
            charts.push(new uPlot({ title, width, height: 200, scales, axes: [{ ...axis, label: "seconds", size: 28, labelSize: 20, labelGap: 0 }, { ...axis, size: 64 }],
                cursor: { sync: { key: "time" }, drag: { x: true, y: false } }, series: [{ label: "s", value: (_, at) => (at === null || at === undefined ? "" : number(at, 2)) }, ...series] }, [x, ...data], box));
        };
        place.replaceChildren();
        const plain = (_, value) => (value === null || value === undefined ? "" : number(value, 1));
        // Areas one upon the other: each series is the sum of its subcell and of those after it, and is drawn before them.
        const rates = subcells.map((subcell) => rate(subcell.samples));
        const stacked = rates.map((_, at) => x.map((_, step) => rates.slice(at).reduce((sum, of) => sum + of[step], 0)));
        chart("Samples per second of each subcell, stacked", subcells.map((subcell, at) => ({
            label: shown(subcell.name), stroke: colourOf(at), fill: colourOf(at), width: 1, points: { show: false },
            value: (_, __, ___, step) => plain(null, step === null ? null : rates[at][step]),
        })), stacked);
        if (timeline.records.length) {
            const yields = numbers.map((at) => (timeline.records[at] > 0 ? (timeline.located[at] / timeline.records[at]) * 100 : null));
            chart("Yield: samples that gave an address, %", [{ label: "%", stroke: COLOURS[2], width: 1.5, value: plain }], [yields], () => [0, 100]);
            if (lost > 0) chart("Lost records per second", [{ label: "lost", stroke: "#cc3311", fill: "#cc331133", width: 1.5, value: plain }], [rate(timeline.lost)]);
        }
    };
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    section("time", "The run over time",
        el("p", {}, `Steps of ${duration(timeline.step_ns)}${isWhole ? ", without the first and the last, which are not whole" : ""}. `, timeline.records.length ? `${percent(sum(timeline.located) / Math.max(1, sum(timeline.records)))} of ${counted(sum(timeline.records), "sample")} gave an address; ${lost > 0 ? `${count(lost)} records were lost` : "no record was lost"}.` : ""),
        place,
        el("details", {}, el("summary", {}, "Samples of each subcell as a table"), table({ label: "Samples of each subcell", rows: timeline.subcells, columns: [
            { name: "Subcell", value: (row) => row.name }, { name: "Samples", isNumber: true, value: (row) => sum(row.samples) },
            { name: "Least a second", isNumber: true, value: (row) => Math.min(...rate(row.samples)) }, { name: "Most a second", isNumber: true, value: (row) => Math.max(...rate(row.samples)) },
        ] }).box));
    draw();
    let waiting = 0;
    addEventListener("resize", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => draw(), 150);
    });
    return { repaint: draw };
}
