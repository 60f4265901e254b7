// What was not seen: in a line, unless something may make the result wrong.

/** The part of the samples, or of the scheduling events, whose loss is worth a look. */
const MATTERS = 0.001;

/** Lost samples in percent; a loss is never shown as 0. */
const lostPercent = (value) => (value === 0 ? "0 %" : value < 0.001 ? "< 0.001 %" : `${number(value, value < 1 ? 3 : 1)} %`);

/** Why threads have no verdict: each reason with its threads and their samples. */
function unjudgedThreads(report) {
    const unjudged = new Map();
    for (const thread of report.cells.flatMap((cell) => cell.subcells.flatMap((subcell) => subcell.threads))) {
        if (!thread.verdict.startsWith("unknown: ")) continue;
        // The misses of a thread, at the end, are its own.
        const why = thread.verdict.slice("unknown: ".length).replace(/ \(\d+\)$/, "");
        const sum = unjudged.get(why) ?? { why, threads: 0, samples: 0 };
        sum.threads += 1;
        sum.samples += thread.samples;
        unjudged.set(why, sum);
    }
    return [...unjudged.values()].sort((a, b) => b.samples - a.samples);
}

/** The sum of these losses of a report. */
const lossOf = (report, ...names) => names.reduce((sum, it) => sum + (report.loss?.[it] ?? 0), 0);

/**
 * The part of the scheduling events that was lost. It is an alarm from 0.1 % on; but of events that the kernel gave no sample of, which are
 * those of idle CPUs, only from where the commands say so too.
 */
function lostEvents(report) {
    const dropped = lossOf(report, "sched_ring_full", "sched_dropped", "sched_malformed");
    const unsampled = lossOf(report, "sched_unsampled");
    const all = Math.max(1, unsampled + lossOf(report, "sched_events", "sched_ring_full", "sched_malformed"));
    const part = (dropped + unsampled) / all;
    return { part, isAlarm: dropped / all > MATTERS || part > 0.01 };
}

/** What may make the result wrong, as sentences. */
function matters(report) {
    const { run, timeline } = report;
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const found = [];
    if (run.lost_percent / 100 > MATTERS) found.push(`${lostPercent(run.lost_percent)} of the samples were lost`);
    const dropped = sum(timeline.lost);
    if (run.lost_percent === 0 && dropped / Math.max(1, dropped + sum(timeline.records)) > MATTERS) found.push(`${counted(dropped, "record")} ${dropped === 1 ? "was" : "were"} lost`);
    if (lossOf(report, "corrupt_rings", "dead_workers") > 0) found.push("Some CPUs were not sampled to the end: a ring was corrupt, or a thread that reads rings died");
    const names = lossOf(report, "side_band");
    if (names / Math.max(1, names + lossOf(report, "samples")) > MATTERS) found.push(`${counted(names, "record")} of names, forks, mappings or cgroups ${names === 1 ? "was" : "were"} lost`);
    const events = lostEvents(report);
    if (events.isAlarm) found.push(`${percent(events.part)} of the scheduling events were lost`);
    if (report.unlisted_threads > 0) found.push(`${counted(report.unlisted_threads, "thread")} in cgroups beyond the number that is distinguished`);
    return [...found, ...(run.damage ?? []).map((text) => `The profile is damaged: ${text}`)];
}

/** What was not seen, as sentences: what matters first, marked `isBad`. */
function unseen(report) {
    const { run, matrix, page } = report;
    const found = matters(report).map((text) => ({ text, isBad: true }));
    const add = (text) => found.push({ text, isBad: false });
    run.lost.forEach((text) => add(text));
    const dropped = report.timeline.lost.reduce((a, b) => a + b, 0);
    if (dropped > 0 && run.lost_percent === 0 && !found.some(({ text }) => text.includes("record"))) add(`${counted(dropped, "record")} ${dropped === 1 ? "was" : "were"} lost`);
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
    for (const { why, threads, samples } of unjudgedThreads(report)) {
        add(`${page.is_shortened ? "at least " : ""}${counted(threads, "thread")} without a verdict, with ${percent(samples / Math.max(1, report.samples))} of the samples: ${why}`);
    }
    run.left_out.forEach((text) => add(text));
    run.skipped.forEach((text) => add(`Source skipped: ${text}`));
    if (report.wakeups?.unsampled > 0) add(`Of ${counted(report.wakeups.unsampled, "wakeup")} it is not known whether the threads share memory: one of them has no samples`);
    const left = matrix.left_out;
    if (left.threads > 0) add(`${counted(left.threads, "thread")} with fewer samples are not in the matrix`);
    if (left.regions > 0) add(`${counted(left.regions, "region")} are not in the matrix: ${count(left.misses)} avoidable misses`);
    if (left.pages > 0) add(`${counted(left.pages, "less used shared page")} are not listed line by line`);
    if (page.threads_left_out > 0) add(`${counted(page.threads_left_out, "thread")} with few samples are not in this page; the JSON of --report has them`);
    if (page.is_shortened) add("This page has no room for the whole report: its lists are shortened; the JSON of --report has all of them");
    if (report.stacks?.hidden > 0) add(`${counted(report.stacks.hidden, "sample")} of call stacks are in frames that are not drawn: too narrow, or too many`);
    run.notes.forEach((text) => add(text));
    // The answer has the limits.
    report.notes.filter((text) => !report.limits?.includes(text)).forEach((text) => add(text));
    return found;
}

function hubsPart(report) {
    const { hubs } = report;
    if (!hubs.length) return null;
    return el("div", {}, el("h3", {}, "Hubs"), el("p", {}, "Nearly all threads that map these pages use them, so they do not tell which threads belong together."),
        table({ label: "Hubs", rows: hubs, columns: [
            { name: "Memory", value: (row) => row.memory }, { name: "Accesses", isNumber: true, value: (row) => row.accesses },
            { name: "Writes", isNumber: true, value: (row) => row.writes }, { name: "Threads", isNumber: true, value: (row) => row.threads },
        ] }).box);
}

function unseenSection(report, found) {
    const bad = found.filter(({ isBad }) => isBad);
    const notes = found.filter(({ isBad }) => !isBad);
    const list = (of) => (of.length ? el("ul", {}, of.map(({ text, isBad }) => el("li", { class: isBad ? "bad" : null }, sentence(text)))) : null);
    const isAnyLost = report.run.lost_percent > 0 || report.timeline.lost.some((it) => it > 0);
    const summary = bad.length ? "What else was not seen" : isAnyLost ? `${lostPercent(report.run.lost_percent)} of the samples were lost: too few to matter.` : "No sample was lost.";
    const rest = notes.length ? ` ${counted(notes.length, "note")} on what this run does not see.` : "";
    const made = section("unseen", "What was not seen", list(bad),
        el("details", { open: bad.length > 0 }, el("summary", {}, bad.length ? summary : `${summary}${rest}`),
            el("p", {}, el("b", {}, `Source ${report.source}: `), name(report.coverage)),
            list(notes), hubsPart(report)));
    made.classList.toggle("matters", bad.length > 0);
}
