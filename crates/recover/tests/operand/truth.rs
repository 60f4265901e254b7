//! Whether a recovered access is one that the program made.

use scxprof_recover::Candidate;

use super::step::Stop;

/// How far after a stop a candidate's instruction may run: up to 256 instructions are run, without those that undecided branches may run.
pub const AHEAD: usize = 1500;

/// True if the program made the access: the last time that the instruction ran before the stop, or the next times after it;
/// `behind` is how far before it to look, in stops. A repeated string instruction stops once per repetition; any of the last
/// run counts.
pub fn is_true(stops: &[Stop], at: usize, candidate: &Candidate, behind: usize) -> bool {
    let matches = |stop: &Stop| {
        stop.accesses.iter().any(|&(addr, size)| addr == candidate.addr && size == u64::from(candidate.size))
    };
    let runs = |stop: &&Stop| stop.regs.ip == candidate.insn_ip;
    if candidate.method.is_backward() {
        let before = stops.get(at.saturating_sub(behind)..at).unwrap_or_default();
        before.iter().rev().skip_while(|stop| !runs(stop)).take_while(runs).any(matches)
    } else {
        let after = stops.get(at..).unwrap_or_default();
        let (mut steps, mut last) = (0, 0);
        for stop in after {
            if runs(&stop) && matches(stop) {
                return true;
            }
            steps += usize::from(stop.regs.ip != last);
            last = stop.regs.ip;
            if steps > AHEAD {
                return false;
            }
        }
        // The trace ends too early to decide.
        true
    }
}
