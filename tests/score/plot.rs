//! The points as a scatter plot in SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 480.0;
/// The corners of the plot's area.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 615.0;
const TOP: f64 = 55.0;
const BOTTOM: f64 = 420.0;
const INK: &str = "#1b1b1b";
const RULE: &str = "#d9d9d9";
const POINT: &str = "#0b62a4";

/// Ticks of steps of 0.2 that enclose the values.
fn ticks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (least, most) = values.fold((0.0f64, 1.0f64), |(least, most), it| (least.min(it), most.max(it)));
    ((least * 5.0).floor() as i32..=(most * 5.0).ceil() as i32).map(|it| f64::from(it) / 5.0).collect()
}

/// Two axes that are named, and a dot for each point. White below it, so that it can be read on a dark page.
pub fn draw(title: &str, (across, up): (&str, &str), points: &[(f64, f64)]) -> String {
    let (columns, rows) = (ticks(points.iter().map(|it| it.0)), ticks(points.iter().map(|it| it.1)));
    let part = |ticks: &[f64], value: f64| (value - ticks[0]) / (ticks[ticks.len() - 1] - ticks[0]);
    let x = |value: f64| LEFT + part(&columns, value) * (RIGHT - LEFT);
    let y = |value: f64| BOTTOM - part(&rows, value) * (BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"30\" font-size=\"15\">{title}</text>\n"
    );
    let mut line = |a: (f64, f64), b: (f64, f64), colour: &str| {
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            a.0, a.1, b.0, b.1
        );
    };
    for &at in &columns {
        line((x(at), TOP), (x(at), BOTTOM + 5.0), RULE);
    }
    for &at in &rows {
        line((LEFT - 5.0, y(at)), (RIGHT, y(at)), RULE);
    }
    line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK);
    line((LEFT, TOP), (LEFT, BOTTOM), INK);
    for &at in &columns {
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{at:.1}</text>", x(at), BOTTOM + 21.0);
    }
    for &at in &rows {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{at:.1}</text>", LEFT - 9.0, y(at) + 4.5);
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{across}</text>",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 46.0
    );
    let middle = f64::midpoint(TOP, BOTTOM);
    let _ = writeln!(
        svg,
        "<text x=\"22\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 22 {middle:.1})\">{up}</text>"
    );
    for &(across, up) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{POINT}\" fill-opacity=\"0.6\"/>",
            x(across),
            y(up)
        );
    }
    svg.push_str("</svg>\n");
    svg
}
