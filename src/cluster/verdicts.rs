//! The verdict on threads that are in no community.

use super::clusters::{Reason, Verdict};
use super::misses::Misses;
use super::rules::{Region, Rules};
use super::sketch::Sharing;
use super::solve::Cell;

/// A thread that shares this part of its possible misses is not called alone.
const SHARES: f64 = 0.25;
/// From this number of possible misses on, the shared part can be judged...
const ENOUGH: f64 = 30.0;
/// ...and from fewer, if the thread had this number of accesses for each: then it hardly uses lines that were not seen.
const SEEN: f64 = 10.0;

/// The misses that a thread avoids together with all other threads of its cell.
#[derive(Debug, Clone, Copy, Default)]
struct WithOthers {
    misses: f64,
    /// In hubs.
    of_all: f64,
}

impl Sharing {
    /// Tells threads that share nothing from those that share with no community in particular, and from those with too few
    /// possible misses to tell.
    pub(super) fn judge_others(&self, cells: &[Cell], regions: &[Region], misses: &Misses, of_thread: &mut [Verdict]) {
        let mut avoided = vec![WithOthers::default(); of_thread.len()];
        for region in regions {
            for (thread, misses) in region.with_all() {
                let Some(sum) = avoided.get_mut(thread as usize) else { continue };
                sum.misses += misses;
                if region.is_hub {
                    sum.of_all += misses;
                }
            }
        }
        for &thread in cells.iter().flat_map(|cell| &cell.threads) {
            let at = thread as usize;
            let (Some(verdict), Some(avoided)) = (of_thread.get_mut(at), avoided.get(at)) else { continue };
            if *verdict == Verdict::Alone {
                let of = |sums: &[f64]| sums.get(at).copied().unwrap_or_default();
                let accesses = self.threads().get(at).map_or(0, |it| it.accesses) as f64;
                *verdict = judge(*avoided, of(&misses.demand), of(&misses.counted), accesses);
            }
        }
    }
}

fn judge(avoided: WithOthers, demand: f64, counted: f64, accesses: f64) -> Verdict {
    let part = if demand > 0.0 { avoided.misses / demand } else { 0.0 };
    if part >= SHARES {
        let is_certain = Rules::default().at_least(part, counted).is_some();
        return match (is_certain, avoided.of_all * 2.0 >= avoided.misses) {
            (false, _) => Verdict::Unknown(Reason::TooFewMisses),
            (true, true) => Verdict::SharesWithAll,
            (true, false) => Verdict::SharesWithSome,
        };
    }
    if counted >= ENOUGH || accesses >= SEEN * counted {
        Verdict::Alone
    } else {
        Verdict::Unknown(Reason::TooFewMisses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_is_said_only_of_threads_whose_misses_are_known() {
        let of = |misses, of_all, demand, accesses| judge(WithOthers { misses, of_all }, demand, demand, accesses);
        let few = Verdict::Unknown(Reason::TooFewMisses);
        assert_eq!(of(0.0, 0.0, 200.0, 200.0), Verdict::Alone);
        assert_eq!(of(20.0, 20.0, 200.0, 200.0), Verdict::Alone);
        assert_eq!(of(0.0, 0.0, 9.0, 40.0), few);
        // It has a small stack, and was seen using it often.
        assert_eq!(of(0.0, 0.0, 9.0, 400.0), Verdict::Alone);
        assert_eq!(of(9.0, 9.0, 12.0, 40.0), Verdict::SharesWithAll);
        assert_eq!(of(2.0, 2.0, 4.0, 40.0), few);
        assert_eq!(of(41.0, 14.0, 60.0, 80.0), Verdict::SharesWithSome);
        assert_eq!(of(0.0, 0.0, 0.0, 50.0), Verdict::Alone);
    }
}
