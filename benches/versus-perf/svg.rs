//! Plots as SVG: bars and lines with intervals.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
/// Pixels of a character of the labels, at most.
const CHARACTER: f64 = 7.3;
/// Characters in a line of the footer.
const FOOTER: usize = 130;
const FONT: &str = "font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\"";
/// Text, lines and background: readable without the style of a page around it.
const INK: &str = "#1b1b1b";
const GREY: &str = "#5c5c5c";
const RULE: &str = "#d9d9d9";

/// A value with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    pub middle: f64,
    pub low: f64,
    pub high: f64,
}

/// Bars that belong together.
#[derive(Debug, Clone)]
pub struct Group {
    pub label: String,
    /// The label, the value, and what is written behind the bar.
    pub bars: Vec<(String, Value, String)>,
}

/// A line.
#[derive(Debug, Clone)]
pub struct Series {
    pub label: String,
    pub points: Vec<(f64, Value)>,
}

/// What stands around a plot.
#[derive(Debug, Clone)]
pub struct Frame {
    pub title: String,
    /// What the values are.
    pub values: String,
    /// Machine and command.
    pub footer: Vec<String>,
}

/// Text as XML; what XML cannot have is left out.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            c if (c as u32) < 0x20 || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// Horizontal bars; with `zero` a line there, from which they begin.
pub fn bars(frame: &Frame, groups: &[Group]) -> String {
    let labels = groups.iter().flat_map(|group| &group.bars).map(|(label, ..)| label.chars().count()).max();
    let left = 24.0 + labels.unwrap_or(0) as f64 * CHARACTER;
    let behind = groups.iter().flat_map(|group| &group.bars).map(|(.., text)| text.chars().count()).max();
    let right = WIDTH - RIGHT - behind.unwrap_or(0) as f64 * CHARACTER;
    let values = || groups.iter().flat_map(|group| &group.bars).map(|(_, value, _)| *value);
    let most = values().map(|value| value.high.max(value.middle)).fold(0.0, f64::max);
    let least = values().map(|value| value.low.min(value.middle)).fold(0.0, f64::min);
    let ticks = ticks(least, most);
    let span = (most - least).max(f64::MIN_POSITIVE);
    let x = |value: f64| left + (value - least) / span * (right - left).max(1.0);
    let (mut back, mut body) = (String::new(), String::new());
    let mut y = 84.0;
    for group in groups {
        text(&mut body, 16.0, y + 8.0, INK, "start", "bold", &group.label);
        y += 22.0;
        // Not through the label.
        let end = y + 21.0 * group.bars.len() as f64;
        for tick in &ticks {
            line(&mut back, (x(*tick), y - 6.0), (x(*tick), end), RULE);
        }
        line(&mut back, (x(0.0), y - 6.0), (x(0.0), end), GREY);
        for (label, value, behind) in &group.bars {
            let (from, to) = (x(value.middle.min(0.0)), x(value.middle.max(0.0)));
            text(&mut body, left - 8.0, y + 11.0, INK, "end", "normal", label);
            let _ = writeln!(
                body,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"15\" fill=\"{}\"/>",
                y - 1.0,
                (to - from).max(1.0),
                colour(label, 0)
            );
            whisker(&mut body, (x(value.low), y + 6.5), (x(value.high), y + 6.5));
            text(
                &mut body,
                x(value.high.max(value.middle)).max(x(0.0)) + 8.0,
                y + 11.0,
                INK,
                "start",
                "normal",
                behind,
            );
            y += 21.0;
        }
        y += 10.0;
    }
    for tick in ticks {
        text(&mut back, x(tick), y + 8.0, GREY, "middle", "normal", &tidy(tick));
    }
    document(frame, &(back + &body), y + 20.0)
}

/// Lines over a logarithmic axis; the values begin at 0, or are logarithmic too.
pub fn lines(frame: &Frame, along: &str, is_log: bool, series: &[Series]) -> String {
    let (top, bottom, left, right) = (84.0, 404.0, LEFT + 20.0, WIDTH - RIGHT);
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let (first, last) = points().fold((f64::MAX, 0.0f64), |(low, high), (x, _)| (low.min(x), high.max(x)));
    let most = points().map(|(_, value)| value.high.max(value.middle)).fold(0.0, f64::max);
    let least = points().map(|(_, value)| value.low).filter(|low| *low > 0.0).fold(f64::MAX, f64::min);
    let part = |value: f64, from: f64, to: f64| {
        let (from, to) = (from.max(1e-9).log10(), to.max(1e-9).log10());
        if to > from {
            (value.max(1e-9).log10() - from) / (to - from)
        } else {
            0.5
        }
    };
    let x = |value: f64| left + 14.0 + part(value, first, last) * (right - left - 28.0);
    // A logarithmic axis spans whole powers of ten.
    let (low, high) = (10f64.powf(least.log10().floor()), 10f64.powf(most.max(1e-9).log10().ceil()));
    let scale = most.max(f64::MIN_POSITIVE);
    let y = |value: f64| {
        let up = if is_log { part(value.max(low), low, high) } else { value.max(0.0) / scale };
        bottom - up * (bottom - top)
    };
    let mut body = String::new();
    let ticks = if is_log { decades(low, high) } else { ticks(0.0, most) };
    for tick in ticks {
        line(&mut body, (left, y(tick)), (right, y(tick)), RULE);
        text(&mut body, left - 8.0, y(tick) + 4.0, GREY, "end", "normal", &tidy(tick));
    }
    let mut xs: Vec<f64> = points().map(|(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    // Few short numbers are shown themselves.
    if xs.len() > 8 || xs.iter().any(|x| tidy(*x).len() > 4) {
        xs = steps(first, last);
    }
    let mut free = f64::MIN;
    for value in xs {
        line(&mut body, (x(value), bottom), (x(value), bottom + 5.0), GREY);
        let label = tidy(value);
        let half = label.chars().count() as f64 * CHARACTER / 2.0;
        if x(value) - half > free + 6.0 {
            text(&mut body, x(value), bottom + 19.0, GREY, "middle", "normal", &label);
            free = x(value) + half;
        }
    }
    line(&mut body, (left, bottom), (right, bottom), GREY);
    text(&mut body, f64::midpoint(left, right), bottom + 38.0, INK, "middle", "normal", along);
    let mut key = left;
    let families: Vec<usize> = series.iter().map(|series| family(&series.label)).collect();
    for (index, series) in series.iter().enumerate() {
        let own = family(&series.label);
        let before = families.iter().take(index).filter(|other| **other == own).count();
        let colour = colour(&series.label, before);
        let path: Vec<String> =
            series.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(value.middle))).collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (at, value) in &series.points {
            whisker(&mut body, (x(*at), y(value.low)), (x(*at), y(value.high)));
            let _ = writeln!(
                body,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
                x(*at),
                y(value.middle)
            );
        }
        let _ = writeln!(
            body,
            "<rect x=\"{key:.1}\" y=\"{:.1}\" width=\"14\" height=\"14\" fill=\"{colour}\"/>",
            bottom + 54.0
        );
        text(&mut body, key + 20.0, bottom + 65.5, INK, "start", "normal", &series.label);
        key += 48.0 + series.label.chars().count() as f64 * CHARACTER;
    }
    document(frame, &body, bottom + 80.0)
}

/// Blue for scxprof, orange for perf, grey for what neither is (Okabe and Ito: all eyes tell them apart).
fn colour(label: &str, index: usize) -> &'static str {
    let shades = match family(label) {
        0 => ["#0072b2", "#56b4e9", "#004b76"],
        1 => ["#d55e00", "#e69f00", "#8f3f00"],
        _ => ["#7a7a7a", "#a5a5a5", "#4f4f4f"],
    };
    shades.get(index % shades.len()).copied().unwrap_or(GREY)
}

fn family(label: &str) -> usize {
    ["scxprof", "perf"].iter().position(|name| label.contains(name)).unwrap_or(2)
}

fn document(frame: &Frame, body: &str, below: f64) -> String {
    let mut around = String::new();
    let _ = writeln!(
        around,
        "<text x=\"16\" y=\"30\" font-size=\"18\" font-weight=\"bold\" fill=\"{INK}\">{}</text>",
        escape(&frame.title)
    );
    text(&mut around, 16.0, 52.0, GREY, "start", "normal", &frame.values);
    let mut y = below + 18.0;
    for said in frame.footer.iter().flat_map(|said| wrapped(said)) {
        let _ =
            writeln!(around, "<text x=\"16\" y=\"{y:.1}\" font-size=\"11\" fill=\"{GREY}\">{}</text>", escape(&said));
        y += 15.0;
    }
    let height = y + 4.0;
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" {FONT} font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{around}{body}</svg>\n"
    )
}

/// Lines of at most [`FOOTER`] characters.
fn wrapped(said: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in said.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > FOOTER {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

fn text(out: &mut String, x: f64, y: f64, fill: &str, anchor: &str, weight: &str, said: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{fill}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{}</text>",
        escape(said)
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// An interval: a line with ends across it. Nothing if it has no length.
fn whisker(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    let is_flat = (to.0 - from.0).abs() >= (to.1 - from.1).abs();
    if (to.0 - from.0).hypot(to.1 - from.1) < 1.0 {
        return;
    }
    line(out, from, to, INK);
    let (dx, dy) = if is_flat { (0.0, 4.0) } else { (4.0, 0.0) };
    for end in [from, to] {
        line(out, (end.0 - dx, end.1 - dy), (end.0 + dx, end.1 + dy), INK);
    }
}

/// Round numbers from `least` to `most`: steps of 1, 2 or 5 times a power of ten.
fn ticks(least: f64, most: f64) -> Vec<f64> {
    let span = most - least;
    if !span.is_finite() || span <= 0.0 {
        return vec![0.0];
    }
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= rough).unwrap_or(rough);
    let first = (least / step).ceil() as i64;
    (first..).map(|index| index as f64 * step).take_while(|tick| *tick <= most + step * 1e-9).take(20).collect()
}

fn decades(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().round() as i32;
    (first..).map(|power| 10f64.powi(power)).take_while(|tick| *tick <= high * 1.001).take(20).collect()
}

/// The numbers of a logarithmic axis: 1, 2 and 5 times the powers of ten.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.max(1e-9).log10().floor() as i32)..=(high.max(1e-9).log10().ceil() as i32);
    powers
        .flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10f64.powi(power)))
        .filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
        .collect()
}

/// A number for an axis.
fn tidy(value: f64) -> String {
    let size = value.abs();
    let (divisor, unit) = match size {
        _ if size >= 1e9 => (1e9, " G"),
        _ if size >= 1e6 => (1e6, " M"),
        _ if size >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let text = format!("{:.4}", value / divisor);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{}{unit}", if text == "-0" { "0" } else { text })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Every element is closed in its order, and text has no bare `<` or `&`: what a reader of XML needs.
    pub fn is_well_formed(svg: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").ok_or("no declaration")?;
        while let Some((text, tag)) = rest.split_once('<') {
            let entities = text.split('&').skip(1);
            if let Some(bad) =
                entities.clone().find(|it| !it.contains(';') || it.starts_with(';') || it.starts_with(' '))
            {
                return Err(format!("bare & before {bad:?}"));
            }
            let (tag, after) = tag.split_once('>').ok_or("a tag without end")?;
            if tag.matches('"').count() % 2 == 1 || tag.contains("NaN") || tag.contains("inf") {
                return Err(format!("attributes of <{tag}>"));
            }
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Err(format!("</{name}> closes nothing"));
                }
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap_or_default());
            }
            rest = after;
        }
        if open.is_empty() && rest.trim().is_empty() {
            Ok(())
        } else {
            Err(format!("still open: {open:?}"))
        }
    }

    fn frame() -> Frame {
        Frame { title: "a < b & \"c\"".into(), values: "s".into(), footer: vec!["x ".repeat(200) + "<y>"] }
    }

    fn value(middle: f64) -> Value {
        Value { middle, low: middle * 0.9, high: middle * 1.2 }
    }

    #[test]
    fn bars_and_lines_are_well_formed_whatever_they_show() {
        for values in [vec![], vec![0.0], vec![1.0, 1e9], vec![-3.0, 4.0, 0.001]] {
            let bar = |value: &f64| ("perf <script>".to_owned(), self::value(*value), "1 & 2".to_owned());
            let groups = [Group { label: "a&b".into(), bars: values.iter().map(bar).collect() }];
            let svg = bars(&frame(), &groups);
            assert_eq!(is_well_formed(&svg), Ok(()), "{svg}");
            let points = (1..).map(f64::from).zip(values.iter().map(|value| self::value(*value))).collect();
            for is_log in [false, true] {
                let svg = lines(
                    &frame(),
                    "<x>",
                    is_log,
                    &[Series { label: "scxprof & co".into(), points: Vec::clone(&points) }],
                );
                assert_eq!(is_well_formed(&svg), Ok(()), "{svg}");
            }
        }
        assert!(is_well_formed("<?xml version=\"1.0\" encoding=\"UTF-8\"?><a><b></a></b>").is_err());
        assert!(is_well_formed("<?xml version=\"1.0\" encoding=\"UTF-8\"?><a>1 & 2</a>").is_err());
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(0.0, 27.1), [0.0, 10.0, 20.0]);
        assert_eq!(ticks(-1.0, 1.0), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(ticks(0.0, 0.0), [0.0]);
        assert_eq!(decades(0.1, 100.0), [0.1, 1.0, 10.0, 100.0]);
        assert_eq!(steps(16.0, 512.0), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(
            ["1000", "20 k", "1.5 M", "0"],
            [1000.0, 20_000.0, 1_500_000.0, -0.0].map(tidy).each_ref().map(|s| &**s)
        );
    }
}
