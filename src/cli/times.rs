//! Times in the tables of scheduling statistics, and the mark of those that may be wrong.

use crate::session::{SchedLoss, SchedSink};
use scxprof_sched::report::{is_much, MUCH_PERCENT};

/// ns as ms.
pub(super) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// ns as microseconds.
pub(super) fn us(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e3))
}

/// The mark of a line that lacks more than 0.1 % of its events: `losses` affect it beside this number of events, and so does the same part
/// of all events that were lost.
pub(super) fn mark(losses: u64, events: u64, loss: &SchedLoss) -> &'static str {
    if losses > 0 && (is_much(losses, events) || loss.percent() > MUCH_PERCENT) {
        "!"
    } else {
        ""
    }
}

/// Why lines have a mark.
pub(super) fn incomplete(stats: &SchedSink) -> &'static str {
    if stats.is_of_some_threads() {
        "\n! the recording has only the switches from some threads, as of `perf record -p` or of a command, so that it is not known \
         when they got a CPU: `perf record -a` and `scxprof record --sched` record all"
    } else {
        "\n! events were lost: the counts are too low, and times may be"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_for_more_than_a_thousandth() {
        let none = SchedLoss { events: 1_000_000, ..SchedLoss::default() };
        assert_eq!(mark(0, 0, &none), "");
        assert_eq!(mark(1, 0, &none), "!");
        assert_eq!((mark(1, 998, &none), mark(1, 1000, &none)), ("!", ""));
        // One loss is of many events, if many were lost in all.
        let some = SchedLoss { ring_full: 2_000, ..none };
        assert_eq!((mark(1, 1_000_000, &some), mark(0, 1_000_000, &some)), ("!", ""));
        let few = SchedLoss { ring_full: 900, ..none };
        assert_eq!(mark(1, 1_000_000, &few), "");
    }
}
