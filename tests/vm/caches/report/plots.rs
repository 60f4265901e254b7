//! The plots of docs/proof.md, on white so that they can be read on a dark page.

use std::fmt::Write as _;

use crate::input::ARMS;
use crate::numbers::{points, Compared, NONE};
use crate::output::fixed;
use crate::stats::spearman;

/// The plot of docs/score.svg: this one can be laid beside it.
#[path = "../../../score/plot.rs"]
mod scatter;

const WIDTH: f64 = 760.0;
const RIGHT: f64 = 730.0;
/// Pixels of a character of the labels, at most.
const CHARACTER: f64 = 7.3;
/// Between the arms of a workload, and between workloads.
const STEP: f64 = 10.0;
const GAP: f64 = 16.0;
const INK: &str = "#1b1b1b";
const GREY: &str = "#5c5c5c";
const RULE: &str = "#d9d9d9";
/// By the place in [`ARMS`], others last (Okabe and Ito: all eyes tell them apart).
const COLOURS: [&str; 6] = ["#7a7a7a", "#e69f00", "#0072b2", "#009e73", "#d55e00", "#cc79a7"];

/// Scores, and what the arms saved.
pub fn score(arms: &[Compared]) -> String {
    let points = points(arms.iter());
    let pairs: Vec<(f64, f64)> = points.iter().map(|it| (it.score, it.saved)).collect();
    // Five times the misses and more lie on the edge, so that the others are told apart.
    let dots: Vec<(f64, f64)> = pairs.iter().map(|pair| (pair.0.clamp(-1.0, 1.0), pair.1.clamp(-4.0, 1.0))).collect();
    let rho = spearman(&pairs).map_or_else(String::new, |rho| format!(": rank correlation {}", fixed(rho)));
    let title = format!("{} configurations on emulated machines{rho}", dots.len());
    scatter::draw(&title, ("score", "part of the misses that was saved"), &dots)
}

/// Misses as a part of those without a configuration: a panel for each scheduler, and in it a dot for each arm of each workload.
pub fn misses(arms: &[Compared]) -> String {
    // What an arm saved is what it lacks of all.
    let shown: Vec<_> = arms.iter().filter(|it| it.arm.name != NONE).filter_map(|it| Some((it, it.saved()?))).collect();
    let most = shown.iter().map(|(_, saved)| 1.0 - saved.low()).fold(1.2, f64::max);
    let labels = shown.iter().map(|(it, _)| it.arm.workload.len()).max().unwrap_or(0);
    let left = 40.0 + labels as f64 * CHARACTER;
    let x = |part: f64| left + part.clamp(0.0, most) / most * (RIGHT - left);
    let ticks = ticks(most);
    let mut body = String::new();
    text(&mut body, (16.0, 30.0), INK, "start", "15", "Last-level misses per unit of work; 1: without a configuration");
    let names = shown.iter().fold(Vec::new(), |mut names: Vec<&str>, (it, _)| {
        if !names.contains(&it.arm.name.as_str()) {
            names.push(&it.arm.name);
        }
        names
    });
    let mut key = 16.0;
    for name in names {
        dot(&mut body, key + 5.0, 50.0, colour(name));
        text(&mut body, (key + 15.0, 54.5), INK, "start", "13", name);
        key += 40.0 + name.len() as f64 * CHARACTER;
    }
    text(&mut body, (RIGHT, 54.5), GREY, "end", "12", "bars: 95 % intervals");
    let mut y = 90.0;
    for panel in
        shown.chunk_by(|(a, _), (b, _)| (&a.arm.machine, &a.arm.scheduler) == (&b.arm.machine, &b.arm.scheduler))
    {
        let Some((first, _)) = panel.first() else { continue };
        let label = format!("{}, {}", first.arm.scheduler, first.arm.machine);
        text(&mut body, (16.0, y), INK, "start", "14", &label);
        y += GAP;
        let workloads = panel.chunk_by(|(a, _), (b, _)| a.arm.workload == b.arm.workload);
        let height = panel.len() as f64 * STEP + workloads.clone().count() as f64 * GAP;
        for &tick in &ticks {
            line(&mut body, (x(tick), y), (x(tick), y + height), RULE);
            text(&mut body, (x(tick), y + height + 15.0), GREY, "middle", "12", &format!("{tick:.1}"));
        }
        line(&mut body, (x(1.0), y), (x(1.0), y + height), INK);
        for workload in workloads {
            y += GAP / 2.0;
            let middle = y + workload.len() as f64 * STEP / 2.0;
            let label = workload.first().map_or("", |(it, _)| &it.arm.workload);
            text(&mut body, (left - 10.0, middle + 4.5), INK, "end", "13", label);
            for (it, saved) in workload {
                let colour = colour(&it.arm.name);
                let at = y + STEP / 2.0;
                line(&mut body, (x(1.0 - saved.high()), at), (x(1.0 - saved.low()), at), colour);
                dot(&mut body, x(1.0 - saved.mid), at, colour);
                y += STEP;
            }
            y += GAP / 2.0;
        }
        y += 50.0;
    }
    let height = y - 14.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// From 0 in steps of 0.2, or so many times more that there are at most some ten.
fn ticks(most: f64) -> Vec<f64> {
    let step = 0.2 * (most / 2.0).ceil();
    (0..20).map(|at| f64::from(at) * step).take_while(|tick| *tick <= most).collect()
}

fn colour(arm: &str) -> &'static str {
    let at = ARMS.iter().position(|name| *name == arm).unwrap_or(ARMS.len());
    COLOURS.get(at).copied().unwrap_or(GREY)
}

fn text(out: &mut String, (x, y): (f64, f64), fill: &str, anchor: &str, size: &str, said: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{fill}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{said}</text>"
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn dot(out: &mut String, x: f64, y: f64, fill: &str) {
    let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\"/>");
}
