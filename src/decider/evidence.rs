//! The sharing between classes of threads in a run, as rows that can be added to those of other runs.

use std::collections::BTreeMap;

use super::decider::Decider;
use crate::cluster::PairUse;
use crate::config::base_of;
use crate::evidence::{part_of, Class, Evidence, EvidenceError, Folds, Key, RowKind, Scope, Sum, Sums};
use crate::sample::printable;

/// The number of classes of a cell whose pairs are written: those with most misses. Others have a row, but no pairs.
const PAIRED: usize = 64;
/// Two classes share in a run if this part of their possible misses or more is shared for certain...
const SHARES: f64 = 0.02;
/// ...and do not if this part is not reached for certain.
const APART: f64 = 0.1;
/// Standard deviations for "certain" (one-sided 5 % and 10 %).
const SURELY: f64 = 1.64;
const SURELY_NOT: f64 = 1.3;

impl Decider {
    /// The rows of this run: `host` is its name, `run` the numbers of the run as a whole.
    pub(crate) fn evidence(
        &self,
        scope: &Scope,
        host: &str,
        folds: &Folds,
        run: &Sums,
    ) -> Result<Evidence, EvidenceError> {
        let scope = &Scope { source: self.source.name().to_owned(), ..scope.clone() };
        let mut rows = Evidence::default();
        let once = Sums::default().with(Sum::Runs, 1);
        rows.add(Key::new(RowKind::Run, scope), &run.with(Sum::Runs, 1).with_value(Sum::Samples, self.tally.total()))?;
        for (place, spec) in (0..).zip(self.specs.specs()) {
            let matches = Class { cell: spec.name.clone(), cgroup: spec.matcher.text(), ..Class::default() };
            rows.add(Key { part: place, ..Key::of(RowKind::Spec, scope, &matches) }, &once)?;
        }
        // Cells; several may fold to one.
        let last = self.specs.specs().len().saturating_sub(1);
        let mut cells: BTreeMap<Class, u64> = BTreeMap::new();
        for (_, cell) in self.tally.cells() {
            if let Some(class) = self.class_of_cell(cell.spec, cell.cgroup.as_deref(), folds) {
                *cells.entry(class).or_default() += u64::from(cell.spec != last);
            }
        }
        for (cell, count) in cells {
            rows.add(Key::of(RowKind::Cell, scope, &cell), &once.with(Sum::Cgroups, count))?;
        }
        // Classes, by number.
        let mut number: BTreeMap<Class, u32> = BTreeMap::new();
        let mut samples: Vec<f64> = Vec::new();
        let mut of_thread: Vec<u32> = Vec::with_capacity(self.facts.len());
        for facts in &self.facts {
            let cell = self.tally.get(facts.cell);
            let class =
                cell.and_then(|cell| self.class_of_cell(cell.spec, cell.cgroup.as_deref(), folds)).unwrap_or_default();
            let comm = printable(base_of(facts.last.1.as_bytes()));
            let hint = facts.hint.map_or_else(String::new, |hint| hint.to_string());
            let next = number.len() as u32;
            let number = *number.entry(Class { comm, hint, ..class }).or_insert(next);
            if number == next {
                samples.push(0.0);
            }
            if let Some(sum) = samples.get_mut(number as usize) {
                *sum += facts.samples;
            }
            of_thread.push(number);
        }
        let mut classes: Vec<&Class> = vec![&NONE; number.len()];
        for (class, &number) in &number {
            if let Some(slot) = classes.get_mut(number as usize) {
                *slot = class;
            }
        }
        let of_cell: Vec<u32> = self.facts.iter().map(|facts| facts.cell).collect();
        let found = self.sharing.classes(&of_cell, &of_thread);
        for ((class, uses), samples) in classes.iter().zip(&found.classes).zip(&samples) {
            let sums = once
                .with(Sum::Threads, u64::from(uses.threads))
                .with_value(Sum::Samples, *samples)
                .with_value(Sum::Misses, uses.misses)
                .with_value(Sum::Counted, uses.counted)
                .with(Sum::Lines, uses.lines.round() as u64);
            rows.add(Key::of(RowKind::Class, scope, class), &sums)?;
        }
        let mut by_misses: Vec<(&Class, f64)> =
            classes.iter().zip(&found.classes).map(|it| (*it.0, it.1.misses)).collect();
        by_misses.sort_by(|a, b| (&a.0.cell, &a.0.cgroup).cmp(&(&b.0.cell, &b.0.cgroup)).then(b.1.total_cmp(&a.1)));
        let paired = by_misses.chunk_by(|a, b| (&a.0.cell, &a.0.cgroup) == (&b.0.cell, &b.0.cgroup));
        let paired: std::collections::BTreeSet<&Class> =
            paired.flat_map(|cell| cell.iter().take(PAIRED).map(|it| it.0)).collect();
        let class = |number: u32| classes.get(number as usize).copied().unwrap_or(&NONE);
        // The first is always there, so that each host is counted.
        let mut parts: BTreeMap<i64, (f64, f64)> = BTreeMap::from([(0, (0.0, 0.0))]);
        for (&(a, b), pair) in &found.pairs {
            if !paired.contains(class(a)) || !paired.contains(class(b)) {
                if pair.avoidable > 0.0 {
                    rows.add(Key::pair(scope, class(a), class(b)), &once.with_value(Sum::Avoidable, pair.avoidable))?;
                }
                continue;
            }
            let counted = |of: u32| found.classes.get(of as usize).map_or(0.0, |it| it.counted);
            let sums = of_pair(pair, counted(a).min(counted(b)));
            let key = Key::pair(scope, class(a), class(b));
            let part = parts.entry(part_of(&key)).or_default();
            *part = (part.0 + pair.possible, part.1 + pair.shared);
            rows.add(key, &sums)?;
        }
        for (&(a, b), &avoidable) in &found.across {
            rows.add(Key::across(scope, class(a), class(b)), &once.with_value(Sum::Avoidable, avoidable))?;
        }
        for (part, (possible, shared)) in parts {
            let key = Key { host: host.to_owned(), part, ..Key::new(RowKind::Host, scope) };
            rows.add(key, &once.with_value(Sum::Possible, possible).with_value(Sum::Shared, shared))?;
        }
        Ok(rows)
    }

    fn class_of_cell(&self, spec: usize, cgroup: Option<&[u8]>, folds: &Folds) -> Option<Class> {
        let cell = self.specs.specs().get(spec)?.name.clone();
        let cgroup = cgroup.map_or_else(|| "*".to_owned(), |cgroup| folds.fold(&printable(cgroup)));
        Some(Class { cell, cgroup, ..Class::default() })
    }
}

static NONE: Class = Class { cell: String::new(), cgroup: String::new(), comm: String::new(), hint: String::new() };

/// The numbers of a pair; `counted` are the possible misses of the class that has fewer.
fn of_pair(pair: &PairUse, counted: f64) -> Sums {
    let part = pair.shared / pair.possible.max(f64::MIN_POSITIVE);
    let shares = part - SURELY * (part / counted.max(1.0)).sqrt() > SHARES;
    let count = part * counted;
    let most = count + SURELY_NOT * (count + SURELY_NOT * SURELY_NOT / 4.0).sqrt() + SURELY_NOT * SURELY_NOT / 2.0;
    Sums::default()
        .with(Sum::Runs, 1)
        .with_value(Sum::Possible, pair.possible)
        .with_value(Sum::Shared, pair.shared)
        .with_value(Sum::Spread, pair.shared * part)
        .with_value(Sum::Common, pair.common)
        .with_value(Sum::Contended, pair.contended)
        .with_value(Sum::Avoidable, pair.avoidable)
        .with(Sum::Sharing, u64::from(shares))
        .with(Sum::Apart, u64::from(!shares && most < APART * counted))
}
