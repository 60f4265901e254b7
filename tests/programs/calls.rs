//! Calls through closures, traits and the standard library, for the names of a call stack. Build with `-O -C
//! force-frame-pointers=yes`.
//!     calls ROUNDS

use std::collections::BTreeMap;
use std::hint::black_box;

trait Work {
    fn work(&self, from: u64) -> u64;
}

struct Spin<const COUNT: u64>;

impl<const COUNT: u64> Work for Spin<COUNT> {
    #[inline(never)]
    fn work(&self, from: u64) -> u64 {
        (0..COUNT).fold(from, |sum, at| black_box(sum.wrapping_add(at)))
    }
}

#[inline(never)]
fn apply<T>(function: impl Fn(T) -> T, from: T) -> T {
    black_box(function(black_box(from)))
}

#[inline(never)]
fn boxed(function: &dyn Fn(u64) -> u64) -> u64 {
    black_box(function(3))
}

mod inner {
    #[inline(never)]
    pub fn sorted(values: &mut [u64], work: &dyn super::Work) {
        values.sort_by_key(|value| std::hint::black_box(work.work(*value)));
        std::hint::black_box(values);
    }
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let workers: [Box<dyn Work>; 2] = [Box::new(Spin::<1000>), Box::new(Spin::<10>)];
    let mut map = BTreeMap::new();
    for round in 0..rounds {
        black_box(apply(|from| workers[0].work(from), round));
        black_box(boxed(&|from| workers[1].work(from) + workers[0].work(1)));
        let mut values: Vec<u64> = (0..40).map(|at| at * 7 % 40).collect();
        inner::sorted(&mut values, &*workers[1]);
        map.extend(values.iter().map(|&value| (value, format!("{value}"))));
    }
    black_box(map);
}
