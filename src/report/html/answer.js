// The answer, and what was not seen.

const KINDS = { community: "community: its threads share memory", class: "class: threads of one name", rest: "all others" };

/** The sentence at the top. */
function headline(report) {
    const subcells = report.cells.flatMap((cell) => cell.subcells.map((subcell) => subcell));
    const kept = subcells.filter((subcell) => subcell.kind !== "rest").length;
    const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    const cells = plural(report.cells.length, "cell");
    if (report.locality === null) {
        const whose = report.across_cells.length ? "threads of one cell; see what is shared across cells" : "threads";
        return `${plural(kept, "subcell")} in ${cells}. There is nothing to avoid: less than 2 % of all possible misses are shared between ${whose}.`;
    }
    const byName = report.locality_by_name === null ? "" : `; grouping by thread name alone would keep ${percent(report.locality_by_name)}`;
    return `${plural(kept, "subcell")} in ${cells} ${kept === 1 ? "keeps" : "keep"} ${percent(report.locality)} of the avoidable misses within ${kept === 1 ? "it" : "them"}${byName}.`;
}

function tile(label, value, { title, isBad, href } = {}) {
    const body = [el("b", {}, value), href ? el("a", { href }, label) : label];
    return el("div", { class: isBad ? "tile bad" : "tile", title }, body);
}

function bar(label, part, isOther) {
    const filled = el("div");
    filled.style.width = `${Math.max(0, Math.min(1, part ?? 0)) * 100}%`;
    return [el("span", {}, label), el("div", { class: isOther ? "bar other" : "bar", role: "img", "aria-label": `${label}: ${percent(part)}` }, filled), el("span", {}, percent(part))];
}

/** How a list of lists of prefixes matches. */
const matches = (prefixes) => prefixes.map((list) => list.map((prefix) => `${prefix}*`).join(" and ")).join(", ") || "all others";

/** What cells share with each other, and how two become one. */
function acrossCells(pairs) {
    const cell = ({ name, cgroup }) => (cgroup === null ? name : `${name} of ${cgroup}`);
    return el("div", {}, el("h3", {}, "Shared across cells"),
        el("p", { class: "dim" }, "Each cell has CPUs of its own. These possible misses would be avoided if both cells used one cache."),
        table({ label: "Shared across cells", rows: pairs, limit: 20, columns: [
            { name: "Cell", value: (row) => cell(row.smaller) }, { name: "and", value: (row) => cell(row.larger) },
            { name: "Misses", isNumber: true, value: (row) => row.misses },
            { name: "Part of the first", isNumber: true, value: (row) => row.part, cell: (row) => percent(row.part), title: "The part of the first cell's possible misses" },
            { name: "Largest shared memory", value: (row) => row.memory },
            { name: "One cell for both", value: (row) => row.advice },
        ] }).box);
}

function answer(report, notSeen, raw) {
    const { run, configuration } = report;
    const rows = report.cells.flatMap((cell, at) => cell.subcells.map((subcell, of) => ({ path: pathOf(cell, subcell), count: report.page.threads[at][of], ...subcell })));
    const confidences = rows.map((row) => row.confidence).filter((it) => it !== null && it !== undefined);
    // A profile may have any number there.
    const began = new Date((run.begin_unix ?? NaN) * 1000);
    const minutes = Number.isNaN(began.getTime()) ? null : `${began.toISOString().replace("T", " ").slice(0, 16)} UTC`;
    const tiles = el("div", { class: "tiles" },
        tile(`samples in ${number(run.seconds, 1)} s`, count(report.samples), { title: minutes }),
        tile("source", report.source, { title: report.coverage }),
        tile(run.target_cpus === 1 ? "CPU of the target host" : "CPUs of the target host", number(run.target_cpus)),
        tile("stability", report.stability === null ? "-" : number(report.stability, 2), { title: "How well the two halves of the run agree (adjusted Rand index): 1 is the same result" }),
        tile("lowest confidence", confidences.length ? number(Math.min(...confidences), 2) : "-", { title: "The fraction of communities with as much evidence that were right in streams of known truth" }),
        tile("samples lost", `${number(run.lost_percent, run.lost_percent > 0 ? 3 : 0)} %`, { isBad: run.lost_percent > 0, href: "#unseen" }),
        tile(notSeen.length === 1 ? "thing was not seen" : "things were not seen", number(notSeen.length), { href: "#unseen", isBad: notSeen.some((it) => it.isBad) }));
    const where = [run.host, run.profile, minutes].filter(Boolean);
    const bars = el("div", { class: "bars" },
        bar("this configuration", report.locality), bar("by thread name alone", report.locality_by_name, true));
    const made = table({
        label: "Cells and subcells",
        rows,
        key: (row) => row.path,
        address: (row) => `subcell=${encodeURIComponent(row.path)}`,
        more: (row) => [...row.regions.map((region) => region.memory), ...row.why].join("\n"),
        columns: [
            { name: "Subcell", value: (row) => row.path },
            { name: "Kind", value: (row) => row.kind, cell: (row) => el("span", { title: KINDS[row.kind] }, row.kind === "rest" ? "catch-all" : row.kind) },
            { name: "Matches", value: (row) => matches(row.prefixes), cell: (row) => el("bdi", { class: "name mono" }, matches(row.prefixes)) },
            { name: "Threads", isNumber: true, value: (row) => row.count },
            { name: "Samples", isNumber: true, value: (row) => row.share, cell: (row) => percent(row.share), title: "Its part of all samples" },
            { name: "Keeps", isNumber: true, value: (row) => row.locality, cell: (row) => percent(row.locality), title: "The part of the avoidable misses that this subcell avoids" },
            { name: "Confidence", isNumber: true, value: (row) => row.confidence, cell: (row) => number(row.confidence, 2), title: "The fraction of communities with as much evidence that were right in streams of known truth" },
            { name: "Largest shared memory", value: (row) => row.regions[0]?.memory ?? "-" },
        ],
        detail: (row) => el("div", {},
            row.kind === "rest" ? el("p", {}, "The catch-all takes all other threads. It keeps no threads together.") : null,
            row.why.length ? el("ul", {}, row.why.map((why) => el("li", {}, name(why)))) : null,
            row.regions.length ? el("div", {}, el("h3", {}, "Regions that its threads share"), el("ul", {}, row.regions.map((region) =>
                el("li", {}, name(region.memory), `: ${bytes(region.bytes)}, ${region.threads} threads, ${count(region.misses)} possible misses, ${count(region.transfers)} of them after another thread's write`)))) : null),
    });
    const text = el("pre", { id: "configuration", tabindex: "0", "aria-label": "The configuration" }, configuration.text.replace(HIDDEN, (hidden) => (hidden === "\n" ? hidden : shown(hidden))));
    const load = el("code", {}, configuration.load);
    const file = configuration.scheduler === "scx_layered" ? "layers.json" : "cells.json";
    const copyButton = el("button", { type: "button", click: () => copy(configuration.text, text, copyButton) }, "Copy the configuration");
    const loadButton = el("button", { type: "button", click: () => copy(configuration.load, load, loadButton) }, "Copy");
    const across = report.sharing.filter((it) => it.a !== it.b);
    const largest = new Map();
    for (const { a, b, misses } of report.sharing) for (const path of [a, b]) largest.set(path, Math.max(largest.get(path) ?? 0, a === b ? misses : 0));
    section("answer", "Answer",
        el("p", { class: "lead" }, headline(report)),
        where.length ? el("p", { class: "dim" }, name(where.join(" · "))) : null,
        tiles,
        report.locality === null ? null : el("div", {}, el("h3", {}, "Avoidable misses that stay within subcells"), bars),
        el("p", { class: "dim" }, "A possible miss is an access that may have had to fetch its cache line. It is avoidable if a thread that shares the cache has the line already."),
        el("h3", {}, "Cells and subcells"), made.box,
        across.length ? el("div", {}, el("h3", {}, "Shared across subcells"), el("p", { class: "dim" }, "What the configuration gives up: possible misses that would be avoided if both subcells used one cache."),
            table({ label: "Shared across subcells", rows: across, limit: 20, columns: [
                { name: "Subcell", value: (row) => row.a }, { name: "and", value: (row) => row.b },
                { name: "Misses", isNumber: true, value: (row) => row.misses },
                { name: "Within the first", isNumber: true, value: (row) => largest.get(row.a) }, { name: "Within the second", isNumber: true, value: (row) => largest.get(row.b) },
            ] }).box) : null,
        report.across_cells.length ? acrossCells(report.across_cells) : null,
        configuration.text ? el("div", {}, el("h3", {}, `The configuration for ${configuration.scheduler}`),
            el("p", {}, "Save it as ", el("code", {}, file), " and load it: ", load, " ", loadButton),
            el("p", {}, copyButton, " ", el("button", { type: "button", click: () => save(configuration.text, file, "application/json") }, `Save ${file}`), " ",
                el("button", { type: "button", click: () => save(JSON.stringify(raw, null, 2), "report.json", "application/json") }, report.page.is_shortened ? "Save what this page has of the report as JSON" : "Save the whole report as JSON")),
            text) : null);
    searched.push((text) => ["row", made.search(text)]);
    return made;
}

/** What was not seen, as sentences: what was lost first. `isBad` marks what may make the result wrong. */
function unseen(report) {
    const { run, matrix } = report;
    const found = [];
    const add = (text, isBad = false) => found.push({ text, isBad });
    run.lost.forEach((text) => add(text, true));
    const dropped = report.timeline.lost.reduce((a, b) => a + b, 0);
    if (dropped > 0 && run.lost_percent === 0) add(`${count(dropped)} records were lost`, true);
    if (run.recovery && run.recovery.user_samples > run.recovery.recovered) {
        const missed = run.recovery.user_samples - run.recovery.recovered;
        const why = Object.entries(run.recovery.unrecovered).sort((a, b) => b[1] - a[1]).map(([what, times]) => `${what} ${count(times)}`).join(", ");
        add(`${count(missed)} of ${count(run.recovery.user_samples)} samples gave no address (${percent(missed / run.recovery.user_samples)}): ${why}`);
    }
    const operands = Object.entries(run.recovery?.unresolved_operands ?? {}).sort((a, b) => b[1] - a[1]);
    if (operands.length > 0) {
        const unresolved = operands.reduce((sum, [, times]) => sum + times, 0);
        const why = operands.map(([what, times]) => `${what} ${count(times)}`).join(", ");
        add(`${count(unresolved)} of ${count(run.recovery.operands)} memory operands near the samples have an unknown address (${percent(unresolved / run.recovery.operands)}): ${why}`);
    }
    for (const { file, offset, times, reason } of run.recovery?.unresolved_places ?? []) {
        add(`The address of an operand of ${file}+0x${offset.toString(16)} is never known: ${count(times)} times, ${reason}`);
    }
    const unknown = new Map();
    for (const thread of report.cells.flatMap((cell) => cell.subcells.flatMap((subcell) => subcell.threads))) {
        if (!thread.verdict.startsWith("unknown: ")) continue;
        const why = thread.verdict.slice("unknown: ".length);
        const sum = unknown.get(why) ?? { threads: 0, samples: 0 };
        sum.threads += 1;
        sum.samples += thread.samples;
        unknown.set(why, sum);
    }
    const { page } = report;
    for (const [why, { threads, samples }] of unknown) add(`${page.is_shortened ? "at least " : ""}${count(threads)} threads without a verdict, with ${percent(samples / Math.max(1, report.samples))} of the samples: ${why}`);
    if (report.unlisted_threads > 0) add(`${count(report.unlisted_threads)} threads in cgroups beyond the number that is distinguished`, true);
    run.left_out.forEach((text) => add(text));
    run.skipped.forEach((text) => add(`Source skipped: ${text}`));
    if (report.wakeups?.unsampled > 0) add(`Of ${count(report.wakeups.unsampled)} wakeups it is not known whether they carry data: one of the threads has no samples`);
    const left = matrix.left_out;
    if (left.threads > 0) add(`${count(left.threads)} threads with fewer samples are not in the matrix`);
    if (left.regions > 0) add(`${count(left.regions)} regions are not in the matrix: ${count(left.misses)} avoidable misses`);
    if (left.pages > 0) add(`${count(left.pages)} less used shared pages are not listed line by line`);
    if (page.threads_left_out > 0) add(`${count(page.threads_left_out)} threads with few samples are not in this page; the JSON of --report has them`);
    if (page.is_shortened) add("This page has no room for the whole report: its lists are shortened; the JSON of --report has all of them");
    if (report.stacks?.hidden > 0) add(`${count(report.stacks.hidden)} samples of call stacks are in frames that are not drawn: too narrow, or too many`);
    run.notes.forEach((text) => add(text));
    report.notes.forEach((text) => add(text));
    return found;
}

function unseenSection(report, found) {
    const isWhole = !found.some(({ isBad }) => isBad);
    section("unseen", "What was not seen",
        el("p", {}, el("b", {}, `Source ${report.source}: `), name(report.coverage)),
        isWhole ? el("p", {}, "No sample was lost.") : null,
        el("ul", {}, found.map(({ text, isBad }) => el("li", { class: isBad ? "bad" : null }, name(text)))),
        report.hubs.length ? el("div", {}, el("h3", {}, "Hubs"), el("p", {}, "Nearly all threads that could touch these pages do so: they do not tell who belongs together."),
            table({ label: "Hubs", rows: report.hubs, columns: [
                { name: "Memory", value: (row) => row.memory }, { name: "Accesses", isNumber: true, value: (row) => row.accesses },
                { name: "Writes", isNumber: true, value: (row) => row.writes }, { name: "Threads", isNumber: true, value: (row) => row.threads },
            ] }).box) : null);
}
