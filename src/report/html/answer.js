// The answer: what was found, what of it the configuration loads, and the configuration.

const KINDS = { community: "community: its threads share memory", class: "class: threads of one name", rest: "all others" };

/** The finding in a line; reports of other programs may have none. */
function headline(report) {
    if (report.headline) return report.headline;
    const found = report.cells.flatMap((cell) => cell.subcells).filter((subcell) => subcell.kind === "community").length;
    return found ? `${counted(found, "group")} of threads that share memory` : "No group of threads that share memory was found";
}

/** The locality if all groups could be loaded, where that is more than that of the configuration; else `null`. */
const localityOfAll = ({ locality, locality_found: all }) => ((all ?? null) === null || (locality !== null && all <= locality + 0.0005) ? null : all);

/** How good the configuration is, as the table of the command line says it. */
function localityText(report) {
    const { locality, locality_by_name: byName } = report;
    const all = localityOfAll(report);
    if (locality === null && all === null) {
        const unjudged = unjudgedThreads(report);
        const samples = unjudged.reduce((sum, it) => sum + it.samples, 0) / Math.max(1, report.samples);
        if (samples > 0.5) {
            return `${percent(samples)} of the samples are of threads that could not be judged: ${unjudged.map((it) => it.why).join("; ")}.`;
        }
        const whose = report.across_cells.length ? "threads of one cell; see what is shared across cells" : "threads";
        return `There is nothing to avoid: less than 2 % of all possible misses are shared between ${whose}.`;
    }
    const found = all === null ? "" : ` (${percent(all)} with all groups)`;
    const isNoBetter = all !== null && locality !== null && byName !== null && byName >= locality - 0.0005;
    const judged = isNoBetter ? " On this host, the configuration is no better than groups of equal names." : "";
    return `Locality ${percent(locality)}${found}${byName === null ? "" : `; ${percent(byName)} if threads were grouped by name alone`}.${judged}`;
}

/** A line of false sharing: its threads, its variable, and the source line. */
function falseLine(line) {
    const most = Math.max(...line.by_thread.map((thread) => thread.loads + thread.stores));
    const threads = line.by_thread.filter((thread) => thread.loads + thread.stores >= 0.05 * most);
    const names = (of) => {
        const all = [...new Set(of.map((thread) => thread.comm ?? "(unknown)"))].sort();
        return `${all.slice(0, 3).join(", ")}${all.length > 3 ? ` and ${all.length - 3} more` : ""}`;
    };
    const [writers, readers] = [threads.filter((thread) => thread.stored.length), threads.filter((thread) => !thread.stored.length)];
    const touched = (of) => {
        const all = [...new Set(of.flatMap((thread) => (thread.stored.length ? thread.stored : thread.loaded)).map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)))];
        if (!all.length || all.length > 3) return "other bytes";
        return all.length === 1 && !all[0].includes("-") ? `byte ${all[0]}` : `bytes ${all.join(", ")}`;
    };
    const who = writers.length && readers.length
        ? `${names(writers)} ${writers.length === 1 ? "writes" : "write"} ${touched(writers)}, and ${names(readers)} ${readers.length === 1 ? "reads" : "read"} ${touched(readers)}`
        : `${names(threads)} use different bytes`;
    const source = line.code.map((code) => code.caller_line ?? code.line).find(Boolean);
    return `${who} of one cache line of ${line.memory}${source ? `, at ${source.split("/").pop()}` : ""}`;
}

/** The lines of false sharing that their threads use much: links to their rows. */
function falseSharing(report) {
    const samples = new Map(report.cells.flatMap((cell) => cell.subcells.flatMap((subcell) => subcell.threads.map((thread) => [thread.tid, thread.samples]))));
    const isMuch = (line) => line.accesses >= 0.01 * line.by_thread.reduce((sum, { tid }) => sum + (samples.get(tid) ?? 0), 0);
    const lines = report.lines.map((line, at) => ({ at, ...line })).filter((line) => line.sharing === "false" && isMuch(line));
    if (!lines.length) return null;
    const more = lines.length > 3 ? `; and ${counted(lines.length - 3, "more line")} below` : "";
    const links = lines.slice(0, 3).flatMap((line, at) => [at ? "; " : "", el("a", { href: `#line=${line.at}` }, name(falseLine(line)))]);
    return el("p", {}, el("b", {}, "False sharing: "), links, more);
}

/** True for threads that the configuration leaves out; reports of before have no such thing. */
const isLeftOut = (subcell) => subcell.in_configuration === null && (subcell.kind !== "rest" || subcell.threads.length > 0);

/** What the configuration leaves out and why, as whole sentences. */
const limitsOf = (report) => (report.limits ?? []).map((limit) => limit.charAt(0).toUpperCase() + limit.slice(1));

/** Why the configuration leaves groups out, in short: the sentence has the rest. */
function whyLeftOut(report) {
    const isForCpus = report.limits?.some((limit) => limit.includes("CPU"));
    return isForCpus ? `left out: this host has ${counted(report.run.target_cpus, "CPU")}` : "left out";
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

/** The locality of the configuration beside what else was possible. */
function localityBars(report) {
    const { locality, locality_by_name: byName } = report;
    const all = localityOfAll(report);
    if (locality === null && all === null) return null;
    return el("div", {}, el("h3", {}, "Locality: the part of the avoidable misses that are between threads of one subcell"),
        el("div", { class: "bars" }, bar("this configuration", locality), all === null ? [] : bar("with all groups", all, true), bar("grouped by thread name alone", byName, true)),
        el("p", { class: "dim" }, "A possible miss is an access that may have had to fetch its cache line. It is avoidable if another thread that shares the cache has the line already. Threads of a catch-all do not count as together: the scheduler may spread them."));
}

/** How a list of lists of prefixes matches. */
const matches = (prefixes) => prefixes.map((list) => list.map((prefix) => `${prefix}*`).join(" and ")).join(", ") || "all others";

/** What cells share with each other, and how two become one. */
function acrossCells(pairs) {
    const cell = ({ name, cgroup }) => (cgroup === null ? name : `${name} of ${cgroup}`);
    return el("div", {}, el("h3", {}, "Shared across cells"),
        el("p", { class: "dim" }, "Each cell has its own CPUs. These possible misses would be avoided if both cells used one cache."),
        table({ label: "Shared across cells", rows: pairs, limit: 20, columns: [
            { name: "Cell", value: (row) => cell(row.smaller) }, { name: "and", value: (row) => cell(row.larger) },
            { name: "Misses", isNumber: true, value: (row) => row.misses },
            { name: "Part of the first", isNumber: true, value: (row) => row.part, cell: (row) => percent(row.part), title: "The part of the first cell's possible misses" },
            { name: "Most shared memory", title: "The region with the most possible misses", value: (row) => row.memory },
            { name: "One cell for both", value: (row) => row.advice },
        ] }).box);
}

function acrossSubcells(sharing) {
    const across = sharing.filter((it) => it.a !== it.b);
    if (!across.length) return null;
    const within = new Map();
    for (const { a, b, misses } of sharing) for (const path of [a, b]) within.set(path, Math.max(within.get(path) ?? 0, a === b ? misses : 0));
    return el("div", {}, el("h3", {}, "Shared across subcells"),
        el("p", { class: "dim" }, "What is lost by the division: possible misses that would be avoided if both subcells used one cache."),
        table({ label: "Shared across subcells", rows: across, limit: 20, columns: [
            { name: "Subcell", value: (row) => row.a }, { name: "and", value: (row) => row.b },
            { name: "Misses", isNumber: true, value: (row) => row.misses },
            { name: "Within the first", isNumber: true, value: (row) => within.get(row.a) }, { name: "Within the second", isNumber: true, value: (row) => within.get(row.b) },
        ] }).box);
}

/** The configuration, and how it is loaded and saved. */
function configurationPart(report, raw) {
    const { configuration } = report;
    const whole = report.page.is_shortened ? "Save what this page has of the report as JSON" : "Save the whole report as JSON";
    const saveReport = el("button", { type: "button", click: () => save(JSON.stringify(raw, null, 2), "report.json", "application/json") }, whole);
    if (!configuration.text) {
        return el("div", {}, el("h3", {}, "No configuration"), limitsOf(report).map((limit) => el("p", {}, sentence(limit))), el("p", {}, saveReport));
    }
    const text = el("pre", { id: "configuration", tabindex: "0", "aria-label": "The configuration" }, configuration.text.replace(HIDDEN, (hidden) => (hidden === "\n" ? hidden : shown(hidden))));
    const load = el("code", {}, configuration.load);
    const file = configuration.scheduler === "scx_layered" ? "layers.json" : "cells.json";
    const copyButton = el("button", { type: "button", click: () => copy(configuration.text, text, copyButton) }, "Copy the configuration");
    const loadButton = el("button", { type: "button", click: () => copy(configuration.load, load, loadButton) }, "Copy");
    return el("div", {}, el("h3", {}, `The configuration for ${configuration.scheduler}`),
        el("p", {}, "Save it as ", el("code", {}, file), " and load it: ", load, " ", loadButton),
        el("p", {}, copyButton, " ", el("button", { type: "button", click: () => save(configuration.text, file, "application/json") }, `Save ${file}`), " ", saveReport),
        text);
}

/** What a row of the table shows when it is opened. */
function subcellDetail(row, report) {
    const taken = row.in_configuration;
    return el("div", {},
        isLeftOut(row) ? el("p", {}, el("b", {}, `${whyLeftOut(report).replace("left out", "Left out of the configuration")}.`)) : null,
        taken && taken !== row.path ? el("p", {}, "In the configuration, its threads are in ", name(taken), ".") : null,
        row.kind === "rest" ? el("p", {}, "The catch-all takes all other threads. It keeps no threads together.") : null,
        row.why.length ? el("ul", {}, row.why.map((why) => el("li", {}, sentence(why)))) : null,
        row.regions.length ? el("div", {}, el("h3", {}, "Regions that its threads share"), el("ul", {}, row.regions.map((region) =>
            el("li", {}, name(region.memory), `: ${bytes(region.bytes)}, ${counted(region.threads, "thread")}, ${count(region.misses)} possible misses, ${count(region.transfers)} of them after another thread's write`)))) : null);
}

function answer(report, notSeen, raw) {
    const { run } = report;
    const rows = report.cells.flatMap((cell, at) => cell.subcells.map((subcell, of) => ({ path: pathOf(cell, subcell), count: report.page.threads[at][of], ...subcell })));
    const confidences = rows.map((row) => row.confidence).filter((it) => it !== null && it !== undefined);
    // A profile may have any number there.
    const began = new Date((run.begin_unix ?? NaN) * 1000);
    const minutes = Number.isNaN(began.getTime()) ? null : `${began.toISOString().replace("T", " ").slice(0, 16)} UTC`;
    const bad = notSeen.filter((it) => it.isBad).length;
    const tiles = el("div", { class: "tiles" },
        tile(`samples with an address, in ${number(run.seconds, 1)} s`, count(report.samples), { title: minutes }),
        tile("source", report.source, { title: report.coverage }),
        tile(run.target_cpus === 1 ? "CPU of the target host" : "CPUs of the target host", number(run.target_cpus)),
        tile("stability", report.stability === null ? "-" : number(report.stability, 2), { title: "How well the two halves of the run agree (adjusted Rand index): 1 is the same result" }),
        tile("lowest confidence", confidences.length ? number(Math.min(...confidences), 2) : "-", { title: "The fraction of communities with as much evidence that were right, in runs whose sharing was known" }),
        tile("samples lost", lostPercent(run.lost_percent), { isBad: run.lost_percent / 100 > MATTERS, href: "#unseen" }),
        bad ? tile(bad === 1 ? "thing may make this wrong" : "things may make this wrong", number(bad), { href: "#unseen", isBad: true }) : null);
    const where = [run.host, run.profile, minutes].filter(Boolean);
    const leftOut = whyLeftOut(report);
    const isElsewhere = (row) => Boolean(row.in_configuration) && row.in_configuration !== row.path;
    const made = table({
        label: "Cells and subcells",
        rows,
        key: (row) => row.path,
        address: (row) => `subcell=${encodeURIComponent(row.path)}`,
        more: (row) => [...row.regions.map((region) => region.memory), ...row.why, isLeftOut(row) ? leftOut : ""].join("\n"),
        kind: (row) => (isLeftOut(row) ? "left-out" : row.kind === "rest" && row.count === 0 ? "dim" : null),
        columns: [
            { name: "Subcell", value: (row) => row.path, cell: (row) => [name(row.path), isLeftOut(row) ? el("span", { class: "tag", title: limitsOf(report)[0] }, leftOut) : isElsewhere(row) ? el("span", { class: "dim", title: "What takes these threads in the configuration" }, " in ", name(row.in_configuration)) : null] },
            { name: "Kind", isMinor: true, value: (row) => row.kind, cell: (row) => el("span", { title: KINDS[row.kind] }, row.kind === "rest" ? "catch-all" : row.kind) },
            { name: "Matches", isMinor: true, value: (row) => matches(row.prefixes), cell: (row) => el("bdi", { class: "name mono" }, matches(row.prefixes)) },
            { name: "Threads", isNumber: true, isMinor: true, value: (row) => row.count },
            { name: "Samples", isNumber: true, value: (row) => row.share, cell: (row) => percent(row.share), title: "Its part of all samples" },
            { name: "Locality", isNumber: true, value: (row) => row.locality, cell: (row) => percent(row.locality), title: "The part of all avoidable misses that stay within this subcell" },
            { name: "Confidence", isNumber: true, isMinor: true, value: (row) => row.confidence, cell: (row) => number(row.confidence, 2), title: "The fraction of communities with as much evidence that were right, in runs whose sharing was known" },
            { name: "Most shared memory", isMinor: true, title: "The region with the most possible misses", value: (row) => row.regions[0]?.memory ?? "-" },
        ],
        detail: (row) => subcellDetail(row, report),
    });
    section("answer", "Answer",
        el("p", { class: "lead" }, name(headline(report))),
        el("p", { class: "locality" }, localityText(report)),
        falseSharing(report),
        limitsOf(report).length ? el("ul", { class: "limits" }, limitsOf(report).map((limit) => el("li", {}, sentence(limit)))) : null,
        where.length ? el("p", { class: "dim" }, name(where.join(" · "))) : null,
        tiles,
        el("p", { class: "dim" }, `Source ${report.source}: `, name(report.coverage), "."),
        el("h3", {}, "Cells and subcells"), made.box,
        el("p", { class: "dim" }, "In the order of the configuration: a thread belongs to the first subcell of its cell that matches its name. A community is a group of threads that share more memory than chance explains; a class, threads of one name in no community, because they share with no other thread, or with nearly all alike; a catch-all takes all others. Confidence: the fraction of communities with as much evidence that were right, in runs whose sharing was known. Stability: how well the two halves of the run agree."),
        localityBars(report),
        acrossSubcells(report.sharing),
        report.across_cells.length ? acrossCells(report.across_cells) : null,
        configurationPart(report, raw));
    searched.push((text) => ["row", made.search(text)]);
    return made;
}
