//! What must hold of a configuration by scxprof, and of its score.

use crate::input::Oracle;
use crate::numbers::{Compared, Rank, NONE};
use crate::output::{percent, place};
use crate::stats::Mean;

/// The least rank correlation of scores with what arms saved, over all arms of all workloads.
const RANKS: f64 = 0.9;
/// A part of the misses by which scxprof may be behind before it counts as behind.
const MARGIN: f64 = 0.02;

/// How a verdict can end. What the intervals do not tell is neither ok nor failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Failed,
    Open,
    NotJudged,
}

/// A line for each verdict; false if one failed. With `least`, scxprof must save this part of the misses of none.
pub fn all(
    arms: &[Compared],
    ranks: &[Rank],
    oracles: &[(String, Oracle)],
    mislead: &[String],
    least: Option<f64>,
) -> (Vec<String>, bool) {
    let (mut said, mut failed) = (Vec::new(), false);
    let mut say = |verdict: Verdict, what: String| {
        failed |= verdict == Verdict::Failed;
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Open => "open",
            Verdict::NotJudged => "not judged",
        };
        said.push(format!("{word:<10}  {what}"));
    };
    let own: Vec<&Compared> = arms.iter().filter(|it| it.arm.name == "scxprof").collect();
    if let Some(least) = least {
        let percent = 100.0 * least;
        if own.is_empty() {
            say(Verdict::Failed, format!("scxprof saves at least {percent} %: it was not run"));
        }
        for scxprof in &own {
            let place = place(scxprof.arm);
            let saved = scxprof.saved().map(|saved| saved.mid);
            let figure =
                saved.map_or_else(|| "it or none was not run".to_owned(), |part| format!("{:.1} %", 100.0 * part));
            let verdict = if saved.is_some_and(|part| part >= least) { Verdict::Ok } else { Verdict::Failed };
            say(verdict, format!("{place}: scxprof saves at least {percent} %: {figure}"));
        }
    }
    for scxprof in &own {
        let place = place(scxprof.arm);
        let by_name = arms.iter().find(|it| it.arm.name == "name" && it.is_beside(scxprof));
        let more = by_name.and_then(|name| scxprof.fewer_than(&name.misses()));
        let Some((name, more)) = by_name.zip(more) else {
            say(Verdict::NotJudged, format!("{place}: scxprof and by name: one of both, or none, was not run"));
            continue;
        };
        let figures = format!(
            "scxprof saves {}, by name {}: {} more",
            percent(scxprof.saved()),
            percent(name.saved()),
            percent(Some(more))
        );
        say(judged(more, -MARGIN), format!("{place}: {figures}, at least as many"));
        if mislead.contains(&scxprof.arm.workload) {
            say(judged(more, 0.0), format!("{place}: {figures}, as names mislead"));
        }
    }
    for crossed in arms.iter().filter(|it| it.arm.name == "crossed") {
        let place = place(crossed.arm);
        match crossed.saved() {
            // What is below 0 for it is above 0 for none.
            Some(saved) => {
                let worse = Mean { mid: -saved.mid, ..saved };
                say(judged(worse, 0.0), format!("{place}: crossed saves {}, fewer than 0", percent(Some(saved))));
            }
            None => say(Verdict::NotJudged, format!("{place}: crossed: it or none was not run")),
        }
    }
    for (workload, of) in oracles {
        let verdict = if of.asked > 0 && of.found == of.asked { Verdict::Ok } else { Verdict::Failed };
        say(verdict, format!("{workload}: {} of {} recovered accesses have happened", of.found, of.asked));
    }
    let compared = arms.iter().filter(|it| it.arm.name != NONE).count();
    if let Some(all) = ranks.last() {
        let what = format!("rank correlation of score and saved part, at least {RANKS}");
        match all.score {
            Some(found) => say(
                if found >= RANKS { Verdict::Ok } else { Verdict::Failed },
                format!("{what}: {found:.3} of {} arms", all.points),
            ),
            // A run without scores does not show what they are worth; one of two configurations was not to show it.
            None => say(
                if compared > 2 { Verdict::Failed } else { Verdict::NotJudged },
                format!("{what}: {} arms, too few or all equal", all.points),
            ),
        }
    }
    (said, !failed)
}

/// Whether something is above a bound: by its interval as a whole, and open where that holds the bound, or there is none.
fn judged(of: Mean, bound: f64) -> Verdict {
    match of.half {
        None => Verdict::NotJudged,
        Some(_) if of.low() >= bound => Verdict::Ok,
        Some(_) if of.high() < bound => Verdict::Failed,
        Some(_) => Verdict::Open,
    }
}
