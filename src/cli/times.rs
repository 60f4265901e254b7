//! Times in the tables of scheduling statistics, and the mark of those that may be wrong.

use crate::session::SchedSink;

/// ns as ms.
pub(super) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// ns as microseconds.
pub(super) fn us(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e3))
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
