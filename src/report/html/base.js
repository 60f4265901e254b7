// What all sections use: elements, numbers, names.

/** Characters that change how a line is read without being seen: controls, and marks of direction. */
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** A name as it can be shown: hidden characters as their number. */
function shown(text) {
    return text.replace(HIDDEN, (hidden) => `\\u{${hidden.codePointAt(0).toString(16)}}`);
}

/** An element with attributes and children; a string becomes text, never markup. */
function el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") element.addEventListener(name, value);
        else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
}

/** A name from the data. */
const name = (text) => el("bdi", { class: "name" }, text);

/** A sentence from the data, in which no option such as `--target-cpus` is divided. */
const sentence = (text) => el("bdi", { class: "name sentence" }, text.split(/(--[\w=-]+)/).map((part, at) => (at % 2 ? el("span", { class: "whole" }, part) : part)));

const number = (value, digits = 0) =>
    value === null || value === undefined ? "-"
        : value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** `1 thread`, `2 threads`. */
const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

/** Accesses and the like: whole numbers, but for small ones. */
const count = (value) => number(value, value !== null && value !== undefined && value < 10 && value % 1 !== 0 ? 1 : 0);

/** A part of 1. */
const percent = (part, digits = 1) => (part === null || part === undefined ? "-" : `${number(part * 100, digits)} %`);

function duration(ns) {
    if (ns === null || ns === undefined) return "-";
    if (ns >= 1e9) return `${number(ns / 1e9, 2)} s`;
    return ns >= 1e6 ? `${number(ns / 1e6, 2)} ms` : `${number(ns / 1e3, 1)} µs`;
}

function bytes(size) {
    if (size < 1024) return `${size} B`;
    return size < 1 << 20 ? `${number(size / 1024, size < 10240 ? 1 : 0)} KiB` : `${number(size / (1 << 20), 1)} MiB`;
}

/** The path of a subcell; a cell that is not divided has no subcells. */
const pathOf = (cell, subcell) =>
    cell.subcells.length === 1 && subcell.name === cell.name ? cell.name : `${cell.name}/${subcell.name}`;

const threadName = (thread) => `${thread.comm ?? "(unknown)"} (${thread.tid}${thread.hint === undefined ? "" : `, hint ${thread.hint}`})`;

/** What a screen reader says. */
function say(text) {
    document.getElementById("said").textContent = text;
}

/** What the links at the top call a section whose title is long. */
const SHORT = { unseen: "Not seen", matrix: "Matrix", lines: "Lines", time: "Time", stacks: "Stacks" };

/** A section with its link at the top. */
function section(id, title, ...children) {
    document.querySelector("nav").append(el("a", { href: `#${id}`, title: SHORT[id] ? title : null }, SHORT[id] ?? title));
    const made = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
    document.querySelector("main").append(made);
    return made;
}

/** Shows a tip at the pointer; none without a text. */
function tip(text, event) {
    const box = document.getElementById("tip");
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8))}px`;
}

/** Puts what is shown into the address, so that it can be sent. */
function setAddress(what) {
    history.replaceState(null, "", `#${what}`);
}

/** Copies a text; where the browser forbids it, as for files, it is selected for the user's Ctrl-C. */
async function copy(text, from, button) {
    let done = false;
    try {
        await navigator.clipboard.writeText(text);
        done = true;
    } catch {
        const range = document.createRange();
        range.selectNodeContents(from);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    say(done ? "Copied." : "Selected: press Ctrl-C to copy.");
}

function save(text, file, type) {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What the search filters: each takes the text in lower case and returns what it found, and how many: `["row", 3]`. */
const searched = [];

/** The class of a column's cells. */
const classOf = ({ isNumber, isMinor }) => [isNumber ? "number" : null, isMinor ? "minor" : null].filter(Boolean).join(" ") || null;

/**
 * A table whose columns can be sorted and whose rows are searched. A column has a `name`, a `value` of a row, and may have a `cell` (what
 * is shown), `isNumber`, `isMinor` (narrow screens are without it) and a `title`. `detail` makes what a row shows when it is opened, `address` its part of the page's address, and
 * `more` the text by which it is found beside its columns; `kind` is the class of a row. At most `limit` rows are made at first. `sort`
 * names the column by which the rows are sorted at first, its largest first. One that `isDense` has room for many columns of numbers.
 */
function table({ label, columns, rows, key, detail, address, more: moreText, kind, limit = 200, sort, isDense }) {
    const body = el("tbody");
    const box = el("div", { class: isDense ? "scroll dense" : "scroll", role: "region", "aria-label": label, tabindex: "0" });
    const more = el("button", { type: "button" });
    const state = { order: [...rows], most: limit, text: "", opened: new Set(), body };
    const texts = new Map();
    const details = new Map();
    const buttons = new Map();
    const textOf = (row) => {
        if (!texts.has(row)) texts.set(row, [...columns.map((column) => String(column.value(row) ?? "")), moreText ? moreText(row) : ""].join("\n").toLowerCase());
        return texts.get(row);
    };
    const made = (row) => {
        const cells = columns.map((column, at) => {
            const value = column.value(row);
            const content = column.cell ? column.cell(row) : column.isNumber ? count(value) : name(String(value ?? "-"));
            const attributes = { class: classOf(column), "data-value": value === null || value === undefined ? "" : value };
            if (column.isNumber && typeof value === "number") attributes.title = String(value);
            if (at === 0 && detail) {
                const button = el("button", { type: "button", "aria-expanded": String(state.opened.has(row)), click: () => toggle(row) }, state.opened.has(row) ? "−" : "+");
                button.setAttribute("aria-label", `Details of ${value}`);
                buttons.set(row, button);
                return el("td", attributes, button, " ", content);
            }
            return el("td", attributes, content);
        });
        const line = el("tr", { "data-key": key ? key(row) : null, class: kind?.(row) }, cells);
        if (!state.opened.has(row)) return [line];
        if (!details.has(row)) details.set(row, detail(row));
        return [line, el("tr", {}, el("td", { colspan: columns.length, class: "detail" }, details.get(row)))];
    };
    const draw = () => {
        const found = state.text ? state.order.filter((row) => textOf(row).includes(state.text)) : state.order;
        body.replaceChildren(...found.slice(0, state.most).flatMap(made));
        more.hidden = found.length <= state.most;
        more.textContent = `Show all ${number(found.length)}`;
        return found.length;
    };
    const toggle = (row, isOpen = !state.opened.has(row)) => {
        if (isOpen) state.opened.add(row);
        else state.opened.delete(row);
        if (isOpen && address?.(row)) setAddress(address(row));
        draw();
        buttons.get(row)?.focus();
    };
    const heads = columns.map((column) => el("th", { scope: "col", class: classOf(column), "aria-sort": "none", title: column.title },
        el("button", { type: "button", click: () => sortBy(column) }, column.name)));
    const sortBy = (column, isDown) => {
        const head = heads[columns.indexOf(column)];
        const down = isDown ?? (head.getAttribute("aria-sort") === "none" ? Boolean(column.isNumber) : head.getAttribute("aria-sort") === "ascending");
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const compare = (a, b) => {
            const [x, y] = [column.value(a), column.value(b)];
            if (x === y) return 0;
            // What is not known comes last.
            if (x === null || x === undefined) return 1;
            if (y === null || y === undefined) return -1;
            const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
            return down ? -order : order;
        };
        state.order.sort(compare);
        draw();
    };
    more.addEventListener("click", () => {
        const shownBefore = state.most;
        state.most = Infinity;
        draw();
        const next = body.children[shownBefore];
        next?.setAttribute("tabindex", "-1");
        next?.focus();
    });
    box.append(el("table", {}, el("caption", { class: "unseen-text" }, label), el("thead", {}, el("tr", {}, heads)), body), more);
    draw();
    if (sort) sortBy(columns.find((column) => column.name === sort), true);
    return {
        box,
        /** Shows only the rows that contain the text; returns how many. */
        search(text) {
            state.text = text;
            return draw();
        },
        /** Opens, marks and shows the row with this key; false if there is none. */
        show(wanted) {
            const row = rows.find((row) => key(row) === wanted);
            if (!row) return false;
            state.text = "";
            state.most = Math.max(state.most, state.order.indexOf(row) + 1);
            if (detail) state.opened.add(row);
            draw();
            const line = [...body.children].find((line) => line.dataset.key === wanted);
            line?.classList.add("marked");
            line?.scrollIntoView({ block: "center" });
            return Boolean(line);
        },
    };
}
