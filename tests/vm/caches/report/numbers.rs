//! Rounds become means with intervals, and arms are compared with the arm `none` beside them.

use crate::input::{Arm, Figure, Round};
use crate::stats::{drawn, middle, spearman, Mean};
use scxprof::testing::cluster::truth::Rng;

/// How often rounds are drawn for an interval.
const DRAWS: usize = 1000;

/// The arm without a configuration.
pub const NONE: &str = "none";

/// An arm beside the one without a configuration of the same machine, scheduler and workload.
#[derive(Debug)]
pub struct Compared<'a> {
    pub arm: &'a Arm,
    none: Option<&'a Arm>,
}

impl Compared<'_> {
    /// The part of the misses per unit that the arm without a configuration has more. Of means, as threads that stay where chance put them
    /// have hardly any misses in some of its rounds.
    pub fn saved(&self) -> Option<Mean> {
        self.fewer_than(&misses(self.none?))
    }

    /// By how much its misses are below these, as a part of those without a configuration.
    pub fn fewer_than(&self, others: &[f64]) -> Option<Mean> {
        let whole = Mean::of(&misses(self.none?)).filter(|whole| whole.mid > 0.0)?;
        Mean::difference(others, &self.misses()).map(|more| more.over(whole.mid))
    }

    /// Misses per unit of work, by round.
    pub fn misses(&self) -> Vec<f64> {
        misses(self.arm)
    }

    /// Something of the rounds, per unit of work.
    pub fn per_unit(&self, of: fn(&Round) -> f64) -> Option<Mean> {
        Mean::of(&self.arm.rounds.values().map(|round| of(round) / round.units).collect::<Vec<_>>())
    }

    /// Units of work a second of the guest's time.
    pub fn rate(&self) -> Option<Mean> {
        Mean::of(&self.arm.rounds.values().map(|round| round.units / round.seconds).collect::<Vec<_>>())
    }

    pub fn score(&self) -> Option<Figure> {
        self.arm.prediction.as_ref()?.score
    }

    fn is_judged(&self) -> bool {
        self.arm.prediction.as_ref().is_some_and(|it| it.locality.is_some())
    }

    pub fn avoidable(&self) -> Option<f64> {
        self.arm.prediction.as_ref()?.avoidable
    }

    /// Where it ran.
    pub fn is_beside(&self, other: &Self) -> bool {
        is_beside(self.arm, other.arm)
    }
}

fn is_beside(a: &Arm, b: &Arm) -> bool {
    (&a.machine, &a.scheduler, &a.workload) == (&b.machine, &b.scheduler, &b.workload)
}

fn misses(of: &Arm) -> Vec<f64> {
    of.rounds.values().map(Round::misses).collect()
}

/// All arms, in their order.
pub fn compared(arms: &[Arm]) -> Vec<Compared<'_>> {
    let none = |of: &Arm| arms.iter().find(|it| it.name == NONE && is_beside(it, of));
    arms.iter().map(|arm| Compared { arm, none: none(arm) }).collect()
}

/// An arm's score, its score times what is avoidable, and the part of the misses that it saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub score: f64,
    pub product: Option<f64>,
    pub saved: f64,
}

/// The points of some arms. The arm without a configuration is none: what it saves is 0 by definition, and so is its score. Nor are those of
/// which scxprof says that there is nothing to judge: too few misses can be avoided.
pub fn points<'a>(arms: impl Iterator<Item = &'a Compared<'a>>) -> Vec<Point> {
    arms.filter(|it| it.arm.name != NONE)
        .filter_map(|it| {
            let score = it.score().filter(|_| it.is_judged())?.mid;
            let product = it.avoidable().map(|avoidable| score * avoidable);
            Some(Point { score, product, saved: it.saved()?.mid })
        })
        .collect()
}

/// How well scores put arms into the order of the misses that these saved.
#[derive(Debug)]
pub struct Rank {
    /// The workload; `None` for all of them.
    pub workload: Option<String>,
    pub points: usize,
    /// Of the score, and of the score times what is avoidable.
    pub score: Option<f64>,
    /// The 95 % interval of the first over the rounds (a bootstrap).
    pub interval: Option<[f64; 2]>,
    pub product: Option<f64>,
}

/// Each workload's, then that of all.
pub fn ranks(arms: &[Compared]) -> Vec<Rank> {
    let mut workloads: Vec<Option<&str>> = Vec::new();
    for arm in arms {
        if !workloads.contains(&Some(&arm.arm.workload)) {
            workloads.push(Some(&arm.arm.workload));
        }
    }
    workloads.push(None);
    let rank = |workload: Option<&str>| {
        let points = points(arms.iter().filter(|it| workload.is_none_or(|name| name == it.arm.workload)));
        let scores: Vec<_> = points.iter().map(|it| (it.score, it.saved)).collect();
        let products: Vec<_> = points.iter().filter_map(|it| Some((it.product?, it.saved))).collect();
        Rank {
            workload: workload.map(str::to_owned),
            points: points.len(),
            score: spearman(&scores),
            interval: interval(arms, workload),
            product: spearman(&products),
        }
    };
    workloads.into_iter().map(rank).collect()
}

/// The interval of the rank correlation, if all arms had had other rounds: each as likely as those that they had.
fn interval(arms: &[Compared], workload: Option<&str>) -> Option<[f64; 2]> {
    let mut random = Rng::new(1);
    let is_of = |it: &&Compared| workload.is_none_or(|name| name == it.arm.workload);
    let arms: Vec<&Compared> = arms.iter().filter(is_of).collect();
    let rank = |_| {
        let drawn: Vec<Option<Mean>> = arms.iter().map(|it| Mean::of(&drawn(&it.misses(), &mut random))).collect();
        let pairs = arms.iter().zip(&drawn).filter(|(it, _)| it.arm.name != NONE && it.is_judged());
        let pairs = pairs.filter_map(|(it, misses)| {
            let none = arms.iter().zip(&drawn).find(|(none, _)| none.arm.name == NONE && none.is_beside(it))?.1;
            Some((it.score()?.mid, 1.0 - (*misses)?.mid / none.filter(|none| none.mid > 0.0)?.mid))
        });
        spearman(&pairs.collect::<Vec<_>>())
    };
    middle((0..DRAWS).filter_map(rank).collect())
}
