// The hottest shared lines, as perf c2c shows them.

const SHARING = {
    false: ["false sharing", "Different bytes of one line: it is written, and no thread touched a byte that another one wrote"],
    true: ["true sharing", "Two threads touched the same byte, and one of them wrote it"],
    none: ["no write sampled", "All samples of it are loads"],
    waited: ["waited on", "All samples of it are loads, by a thread that does little else: it waits for a write, and writes are too few to be sampled"],
    unknown: ["unknown", "Too few samples to decide, or the source does not see writes"],
};

/** How threads share a line, as the command line says it. */
const sharingOf = (line) => (line.sharing === "none" && line.writes === 0 && (line.transfers ?? 0) * 2 > line.accesses ? "waited" : line.sharing);

function sharingTag(sharing) {
    const [text, title] = SHARING[sharing] ?? ["-", ""];
    return el("span", { class: `tag ${sharing}`, title }, text);
}

/** Sources that cannot find a line modified in another CPU's cache: for them there is no HITM, which is not the same as 0. */
const WITHOUT_HITM = ["timer", "faults", "wakeups"];
const hitmColumn = (report) => {
    const sees = !WITHOUT_HITM.includes(report.source);
    return { name: "HITM", isNumber: true, value: (row) => (sees ? row.hitm : null), title: sees ? "Samples that found the line modified in another CPU's cache" : `The source ${report.source} does not see HITM: samples that found the line modified in another CPU's cache` };
};

const ranges = (list) => list.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ") || "-";

/** `f+0x10 (server) at x.c:12`. */
function codeText(code) {
    const file = code.dso.split("/").pop();
    const place = code.sym === null || code.sym === undefined ? `${file}+0x${code.offset.toString(16)}` : `${code.sym}+0x${code.offset.toString(16)} (${file})`;
    const [caller, line] = [code.caller_line, code.line].map((it) => it?.split("/").pop());
    const source = caller && line ? `${caller} (${line})` : caller ?? line;
    const inlined = code.inlined?.length ? ` in inlined ${code.inlined.join(", ")}` : "";
    return `${place}${inlined}${source ? ` at ${source}` : ""}`;
}

/** The 64 bytes of a line: who read and who wrote which. */
function bytePicture(line) {
    const rows = line.by_thread.filter((thread) => thread.loaded.length + thread.stored.length > 0);
    if (!rows.length) return el("p", { class: "dim" }, "The touched bytes of this line were not kept.");
    const picture = (thread) => {
        const row = el("div", { class: "row", role: "img", "aria-label": `${threadName(thread)} read bytes ${ranges(thread.loaded)}, wrote bytes ${ranges(thread.stored)}` });
        const put = (list, what) => list.forEach(([first, last]) => {
            const mark = el("div", { class: what, title: `${what}: bytes ${first}-${last}` });
            mark.style.gridColumn = `${first + 1} / ${last + 2}`;
            mark.style.gridRow = "1";
            row.append(mark);
        });
        put(thread.loaded, "read");
        put(thread.stored, "written");
        return [name(threadName(thread)), row];
    };
    return el("div", {}, el("p", { class: "dim" }, "Bytes 0 to 63: ", el("span", { class: "key read" }), " read, ", el("span", { class: "key written" }), " written (drawn over what was read)"),
        el("div", { class: "bytes" }, rows.flatMap(picture)));
}

function lineDetail(line, report) {
    return el("div", {},
        line.sharing === "false" ? el("p", {}, el("b", {}, "False sharing: "), "fields of different threads share this line by accident. Put each thread's fields into a separate line (alignment to 64 bytes, padding), and the transfers between caches end.") : null,
        line.sharing === "unknown" ? el("p", { class: "dim" }, SHARING.unknown[1], ".") : null,
        bytePicture(line),
        table({ label: "Threads of this line", rows: line.by_thread, columns: [
            { name: "Thread", value: (row) => threadName(row) },
            { name: "Loads", isNumber: true, value: (row) => row.loads }, { name: "Stores", isNumber: true, value: (row) => row.stores },
            hitmColumn(report),
            { name: "Bytes read", value: (row) => ranges(row.loaded) }, { name: "Bytes written", value: (row) => ranges(row.stored) },
            { name: "Variable", value: (row) => (row.symbol ? `${row.symbol.name}+0x${row.symbol.offset.toString(16)}` : "-") },
        ] }).box,
        line.code.length ? table({ label: "Code that touches this line", rows: line.code, columns: [
            { name: "Code", value: codeText }, { name: "Accesses", isNumber: true, value: (row) => row.accesses },
        ] }).box : el("p", { class: "dim" }, "The code that touches it is not known."));
}

/** Why no line is marked as false sharing. */
function noneFalse(list) {
    const unknown = list.filter((line) => line.sharing === "unknown").length;
    return `None of ${counted(list.length, "line")} was seen to be shared falsely${unknown > 0 ? `; of ${number(unknown)} there are too few samples to say` : ""}.`;
}

function lines(report) {
    const all = report.lines;
    const subcells = report.cells.flatMap((cell) => cell.subcells.filter((subcell) => subcell.lines.length).map((subcell) => ({ path: pathOf(cell, subcell), lines: subcell.lines })));
    if (!all.length && !subcells.length) return null;
    const place = el("div");
    const which = el("select", { "aria-label": "Lines of", change: () => draw() }, el("option", { value: "" }, "all threads"), subcells.map((it, at) => el("option", { value: String(at) }, it.path)));
    const onlyFalse = el("input", { type: "checkbox", id: "only-false", change: () => draw() });
    let made;
    let text = "";
    const hitm = hitmColumn(report);
    const transfers = { name: "Transfers", isNumber: true, value: (row) => row.transfers, cell: (row) => number(row.transfers), title: "Possible transfers between caches: accesses after another thread took the line away" };
    // As the report sorts them: by HITM, and where there is none, by transfers.
    const isByHitm = all.some((line) => hitm.value(line) > 0);
    const hasTransfers = all.some((line) => line.transfers !== undefined);
    const draw = () => {
        const list = (which.value === "" ? all : subcells[Number(which.value)].lines).map((line, at) => ({ at, ...line }));
        const rows = onlyFalse.checked ? list.filter((line) => line.sharing === "false") : list;
        made = table({
            label: "Hottest shared lines", rows, key: (row) => String(row.at), detail: (row) => lineDetail(row, report),
            address: (row) => (which.value === "" ? `line=${row.at}` : null),
            more: (row) => [...row.by_thread.map((thread) => `${threadName(thread)} ${thread.symbol?.name ?? ""}`), ...row.code.map(codeText)].join("\n"),
            sort: which.value !== "" ? "Accesses" : isByHitm ? "HITM" : hasTransfers ? "Transfers" : undefined,
            columns: [
                { name: "Line", value: (row) => row.memory },
                { name: "Sharing", value: (row) => (SHARING[sharingOf(row)] ?? ["-"])[0], cell: (row) => sharingTag(sharingOf(row)) },
                { name: "Accesses", isNumber: true, value: (row) => row.accesses }, { name: "Writes", isNumber: true, isMinor: true, value: (row) => row.writes },
                { ...hitm, isMinor: true }, ...(hasTransfers ? [transfers] : []),
                { name: "Threads", isNumber: true, isMinor: true, value: (row) => row.threads },
                { name: "Hottest code", value: (row) => (row.code[0] ? codeText(row.code[0]) : "-") },
            ],
        });
        made.search(text);
        place.replaceChildren(made.box, ...(rows.length ? [] : [el("p", { class: "dim" }, noneFalse(list))]));
    };
    section("lines", "Hottest shared lines",
        el("p", { class: "dim" }, `Cache lines that threads share and that are written, or that threads wait on: those first ${isByHitm ? "that were most often found modified in another CPU's cache (HITM), then those" : ""} with the most possible transfers between caches.`),
        el("p", { class: "controls" }, "Lines of ", which, " ", onlyFalse, " ", el("label", { for: "only-false" }, "false sharing only")), place);
    draw();
    searched.push((wanted) => {
        text = wanted;
        return ["row", made.search(text)];
    });
    const show = (at) => {
        which.value = "";
        onlyFalse.checked = false;
        draw();
        return made.show(at);
    };
    return { show };
}
