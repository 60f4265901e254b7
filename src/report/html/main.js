// Unpacks the report and puts the sections together.

/** The report: base64 of gzip of JSON, with all names made visible; and as it was written. */
async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("data").textContent.trim()), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const raw = JSON.parse(await new Response(stream).text());
    const text = raw.configuration?.text ?? "";
    const clean = (value) => {
        if (typeof value === "string") return shown(value);
        if (Array.isArray(value)) return value.map(clean);
        if (value === null || typeof value !== "object") return value;
        // A name may be one that objects have, such as __proto__.
        return Object.fromEntries(Object.entries(value).map(([key, of]) => [shown(key), clean(of)]));
    };
    const report = clean(raw);
    // This is copied and saved.
    report.configuration.text = text;
    delete raw.page;
    return [report, raw];
}

function setTheme(isDark, repaint, width) {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    document.getElementById("theme").textContent = isDark ? "Light" : "Dark";
    repaint.forEach((it) => it?.repaint(width));
}

/** Shows what the address names. */
function follow({ answered, matrix, hottest, threads }) {
    const address = location.hash.slice(1);
    const [what, ...rest] = address.split("=");
    let value = rest.join("=");
    try {
        value = decodeURIComponent(value);
    } catch {
        // Somebody typed it: as it is.
    }
    if (!value) {
        // Sections are made after the browser looked for them.
        const section = address ? document.getElementById(address) : null;
        section?.querySelectorAll(":scope > details").forEach((details) => details.setAttribute("open", ""));
        section?.scrollIntoView();
        return;
    }
    // What the search hides could not be shown.
    const search = document.getElementById("search");
    search.value = "";
    search.dispatchEvent(new Event("input"));
    let isFound = false;
    if (what === "thread") isFound = [matrix?.showThread(value), threads.show(value)].some(Boolean);
    if (what === "pair" && matrix) isFound = matrix.showPair(...value.split(","));
    if (what === "line" && hottest) isFound = hottest.show(value);
    if (what === "subcell") isFound = answered.show(value);
    if (!isFound) document.getElementById("matched").textContent = `This report has no ${shown(what)} ${shown(value)}.`;
}

function start(report, raw) {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    const found = unseen(report);
    const answered = answer(report, found, raw);
    unseenSection(report, found);
    const matrix = matrixSection(report);
    const hottest = lines(report);
    const timed = time(report);
    scheduling(report);
    flame(report);
    const threads = threadsSection(report);
    setTheme(isDark, []);
    const repaint = [matrix, timed];
    document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark", repaint));
    const search = document.getElementById("search");
    search.addEventListener("input", () => {
        const text = search.value.trim().toLowerCase();
        const matched = new Map([["row", 0]]);
        for (const [what, found] of searched.map((of) => of(text))) matched.set(what, (matched.get(what) ?? 0) + found);
        const told = [...matched].filter(([what, found]) => found > 0 || what === "row").map(([what, found]) => `${number(found)} ${what}${found === 1 ? "" : "s"}`);
        document.getElementById("matched").textContent = text ? told.join(", ") : "";
    });
    // Paper is light, and narrower than most screens; what is closed cannot be opened on it.
    const closed = document.querySelectorAll("#unseen details:not([open])");
    let wasDark = false;
    addEventListener("beforeprint", () => {
        wasDark = document.documentElement.dataset.theme === "dark";
        closed.forEach((details) => details.setAttribute("open", ""));
        setTheme(false, repaint, 940);
    });
    addEventListener("afterprint", () => {
        closed.forEach((details) => details.removeAttribute("open"));
        setTheme(wasDark, repaint);
    });
    addEventListener("keydown", (event) => {
        const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName ?? "");
        if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
            event.preventDefault();
            search.focus();
        } else if (event.key === "Escape" && event.target === search) {
            search.value = "";
            search.dispatchEvent(new Event("input"));
        }
    });
    document.querySelector("footer").append(
        el("p", {}, `Written by scxprof ${report.scxprof}. This file is all of the page: it loads nothing, and nothing leaves it.`),
        el("p", {}, "It contains uPlot 1.6.32 (charts over time; MIT License, Copyright (c) 2022 Leon Sorokin)."));
    const sections = { answered, matrix, hottest, threads };
    addEventListener("hashchange", () => follow(sections));
    follow(sections);
}

unpack().then(([report, raw]) => {
    start(report, raw);
    document.documentElement.dataset.state = "ready";
}).catch((error) => {
    document.querySelector("main").prepend(el("p", { role: "alert" }, `This page is damaged, or the browser is too old for it: ${error.message ?? error}`));
    document.documentElement.dataset.state = "failed";
});
