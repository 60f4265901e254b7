//! A flame graph as SVG: each function as wide as its samples, below the function that called it (Gregg, "The Flame Graph", CACM
//! 59(6), 2016; this direction, in which a browser shows the threads first, is also called icicle). A browser shows the numbers
//! of a frame as its tool tip; the script (flame.js) zooms and searches, and without it the picture is whole too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use super::profile::{percent, StackProfile, Thread};
use scxprof_base::escape;

/// Width of the picture, and of a frame that is not drawn, in pixels.
const WIDTH: f64 = 1200.0;
const LEAST: f64 = 0.3;
const ROW: f64 = 17.0;
const MARGIN: f64 = 10.0;
/// Room for the title and the last line.
const TOP: f64 = 34.0;
const BOTTOM: f64 = 24.0;
/// Width of a character of the text in a frame, about.
const CHARACTER: f64 = 7.0;
/// Frames that are drawn one below another.
const MAX_DEPTH: usize = 1024;
/// The name of the frame above all threads.
const ROOT: &str = "all";
const SCRIPT: &str = include_str!("flame.js");

/// What determines the colour of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Colour {
    Thread,
    User,
    Inlined,
    Kernel,
}

/// A function in its callers.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) samples: u64,
    /// By name and kind.
    pub(super) callees: BTreeMap<(String, KindKey), Node>,
}

/// Functions of one name in the kernel and in a program are two.
pub(super) type KindKey = u8;

impl Colour {
    fn key(self) -> KindKey {
        self as u8
    }

    fn of(key: KindKey) -> Self {
        match key {
            0 => Self::Thread,
            2 => Self::Inlined,
            3 => Self::Kernel,
            _ => Self::User,
        }
    }

    /// Hue and saturation, which the name varies a little.
    fn colour(self, name: &str) -> String {
        let mut hasher = rustc_hash::FxHasher::default();
        name.hash(&mut hasher);
        let varied = (hasher.finish() >> 20) % 20;
        let (hue, saturation) = match self {
            Self::Thread => (210, 15),
            Self::User => (10 + varied * 2, 85),
            Self::Inlined => (170 + varied, 55),
            Self::Kernel => (265 + varied, 50),
        };
        format!("hsl({hue},{saturation}%,{}%)", 68 + varied % 10)
    }
}

/// The samples of the threads that `of` selects as a flame graph, with the threads' names at the top.
#[must_use]
pub fn flame_graph(profile: &StackProfile, of: &dyn Fn(&Thread) -> bool) -> String {
    let (root, deepest) = tree(profile, of);
    let all = root.samples;
    let mut top = Node { samples: all, callees: BTreeMap::new() };
    top.callees.insert((ROOT.to_owned(), Colour::Thread.key()), root);
    let height = TOP + BOTTOM + f64::from(deepest + 1) * ROW;
    let mut text = String::new();
    let _ = write!(
        text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"12\">\n<title>{0}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"{1}\" y=\"22\" text-anchor=\"middle\" font-size=\"16\">{0}</text>\n",
        xml(&format!("{all} samples of {}", profile.event)),
        WIDTH / 2.0,
    );
    if all > 0 {
        let scale = (WIDTH - 2.0 * MARGIN) / all as f64;
        draw(&top, (0, TOP), scale, all, &mut text);
    }
    let _ = write!(
        text,
        "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#555555\">user code: orange; inlined: blue; kernel: violet; threads: grey</text>\n\
         <script><![CDATA[\n{SCRIPT}]]></script>\n</svg>\n",
        height - 7.0
    );
    text
}

/// The stacks of the threads that `of` selects, below the threads' names; and how many frames lie one below another.
pub(super) fn tree(profile: &StackProfile, of: &dyn Fn(&Thread) -> bool) -> (Node, u32) {
    let mut root = Node::default();
    let mut deepest = 0u32;
    for row in &profile.rows {
        let Some(thread) = profile.thread(row).filter(|thread| of(thread)) else { continue };
        root.samples += row.samples;
        let comm = if thread.comm.is_empty() { "(unknown)" } else { &thread.comm };
        let mut node = root.callees.entry((comm.to_owned(), Colour::Thread.key())).or_default();
        node.samples += row.samples;
        let mut depth = 1;
        for frame in profile.frames_of(row.stack).rev().take(MAX_DEPTH) {
            let kind = match frame {
                frame if frame.is_kernel => Colour::Kernel,
                frame if frame.is_inlined => Colour::Inlined,
                _ => Colour::User,
            };
            node = node.callees.entry((frame.name(), kind.key())).or_default();
            node.samples += row.samples;
            depth += 1;
        }
        deepest = deepest.max(depth);
    }
    (root, deepest)
}

/// Draws what a function called, in the row at `y`: the frames hold the samples from number `first` on.
fn draw(node: &Node, (first, y): (u64, f64), scale: f64, all: u64, text: &mut String) {
    let mut first = first;
    for ((name, kind), callee) in &node.callees {
        let samples = callee.samples;
        let (x, width) = (MARGIN + first as f64 * scale, samples as f64 * scale);
        if width >= LEAST {
            let tip = format!("{name}: {samples} samples, {:.2} %", percent(samples, all));
            let _ = write!(
                text,
                "<g data-x=\"{first}\" data-n=\"{samples}\"><title>{}</title><rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" \
                 height=\"{:.1}\" fill=\"{}\" rx=\"1\"/>",
                xml(&tip),
                ROW - 1.0,
                Colour::of(*kind).colour(name),
            );
            let room = ((width - 6.0) / CHARACTER) as usize;
            if room >= 3 {
                let _ =
                    write!(text, "<text x=\"{:.2}\" y=\"{:.1}\">{}</text>", x + 3.0, y + 12.5, xml(&cut(name, room)));
            }
            text.push_str("</g>\n");
            draw(callee, (first, y + ROW), scale, all, text);
        }
        first += samples;
    }
}

/// The first characters, with dots where some are missing.
fn cut(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.to_owned();
    }
    name.chars().take(room.saturating_sub(2)).chain("..".chars()).collect()
}

/// Text for XML: what is markup, and what a reader would not see, is escaped.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in escape::line(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no such characters, and no reader shows a file that contains one (Extensible Markup Language 1.0, 2.2).
            '\u{fffe}' | '\u{ffff}' => escape::push(&mut escaped, character.encode_utf8(&mut [0; 4]).as_bytes()),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::made;
    use super::*;

    /// The x, width and text of each frame's tool tip.
    fn drawn(svg: &str) -> Vec<(f64, f64, f64, String)> {
        let attribute = |part: &str, name: &str| -> f64 {
            let value = part.split(&format!(" {name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        };
        let frames = svg.split("<g data-x=").skip(1).map(|part| {
            let (tip, rest) = part.split_once("<title>").unwrap().1.split_once("</title>").unwrap();
            let rect = rest.split("/>").next().unwrap();
            (attribute(rect, "x"), attribute(rect, "y"), attribute(rect, "width"), tip.to_owned())
        });
        frames.collect()
    }

    #[test]
    fn a_frame_is_as_wide_as_its_samples_and_below_its_caller() {
        let profile = made(&[("a", "main;work", 30), ("a", "main;rest", 10), ("b", "main", 60)]);
        let frames = drawn(&flame_graph(&profile, &|_| true));
        let of = |tip: &str| frames.iter().find(|frame| frame.3.starts_with(tip)).unwrap();
        let whole = WIDTH - 2.0 * MARGIN;
        assert!((of("a: 40 samples, 40.00 %").2 - whole * 0.4).abs() < 0.1);
        assert!((of("b: 60 samples, 60.00 %").2 - whole * 0.6).abs() < 0.1);
        let (caller, callee) = (of("main: 40"), of("work: 30"));
        assert!(callee.1 > caller.1 && callee.0 >= caller.0 && callee.0 + callee.2 <= caller.0 + caller.2 + 0.1);
        assert!((of("all: 100 samples, 100.00 %").2 - whole).abs() < 0.1);
        assert_eq!(frames.len(), 1 + 2 + 2 + 2);
        let only = drawn(&flame_graph(&profile, &|thread| thread.comm == "b"));
        assert_eq!(only.len(), 1 + 2);
        assert!(flame_graph(&made(&[]), &|_| true).ends_with("</svg>\n"));
    }

    #[test]
    fn names_are_data() {
        let profile = made(&[("<script>\u{202e}x\u{ffff}", "a<b>&\"c\";operator<<", 5)]);
        let svg = flame_graph(&profile, &|_| true);
        assert!(
            svg.contains("a&lt;b&gt;&amp;&quot;c&quot;: 5 samples") && svg.contains("operator&lt;&lt;: 5"),
            "{svg}"
        );
        // One script, which is ours; nothing of a name is in it.
        assert_eq!((svg.matches("<script").count(), svg.matches("]]>").count()), (1, 1), "{svg}");
        assert!(svg.contains("&lt;script&gt;\\xe2\\x80\\xaex\\xef\\xbf\\xbf"), "{svg}");
        assert!(!svg.contains(['\u{202e}', '\u{ffff}']), "{svg}");
    }

    #[test]
    fn a_deep_stack_is_drawn() {
        let deep = vec!["f"; 3000].join(";");
        let svg = flame_graph(&made(&[("a", &deep, 5)]), &|_| true);
        assert_eq!(drawn(&svg).len(), 2 + MAX_DEPTH);
    }
}
